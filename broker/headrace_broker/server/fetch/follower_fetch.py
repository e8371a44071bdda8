"""Followers' fetches: the fetch offset says what a follower has, which is what commits records.

A fetch counts only with the epoch of its broker's registration: otherwise a client that poses as a
follower could move the high watermark (CVE-2018-1288).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace_broker.protocol.types import BrokerEpoch, NodeId
from headrace_broker.server.fetch.replica_sessions import (
    DelayedFollowerFetch,
    ReplicaSession,
    is_believed,
)

if TYPE_CHECKING:
    from headrace_broker.server.config.broker_config import BrokerConfig
    from headrace_broker.server.fetch.fetch_sessions import FetchSessions
    from headrace_broker.server.network.context import RequestContext
    from headrace_broker.server.partitions.replica_manager import ReplicaManager

REPLICA_STATE_FROM = 15
_SESSIONLESS = 0


class Node(Protocol):
    """what is needed from the node."""

    @property
    def config(self) -> BrokerConfig:
        """The settings."""

    @property
    def replicas(self) -> ReplicaManager:
        """This broker's replicas."""

    @property
    def fetch_sessions(self) -> FetchSessions:
        """The fetch sessions (KIP-227)."""


def handle_follower(
    broker: Node, context: RequestContext, request: FetchRequest
) -> FetchResponse | DelayedFollowerFetch:
    """Answer at once if there are records or an error; else wait for them, up to max_wait_ms."""
    replicas = broker.replicas
    node_id = NodeId(request.replica_state.replica_id)
    broker_epoch = BrokerEpoch(request.replica_state.replica_epoch)
    if context.api_version < REPLICA_STATE_FROM or not is_believed(
        replicas.host, node_id, broker_epoch
    ):
        return FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    def make(identity: int) -> ReplicaSession:
        former = replicas.follower_sessions.get(node_id)
        if former is not None:
            broker.fetch_sessions.close(former)
        replicas.follower_sessions[node_id] = identity
        return ReplicaSession(identity, replicas, node_id, broker_epoch)

    found, error = broker.fetch_sessions.open(request, make, is_privileged=True)
    if error is not ErrorCode.NONE:
        return FetchResponse(error_code=error)
    if found is None:
        # Without a session (all slots are taken) it is answered with the records at hand.
        session = ReplicaSession(_SESSIONLESS, replicas, node_id, broker_epoch)
        session.update(request, broker.config.values["headrace.fetch.session.max.partitions"])
        response = session.response()
        session.close()
        return response
    if not isinstance(found, ReplicaSession) or found.node_id != node_id:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    if not found.must_wait(request.max_wait_ms):
        return found.response()
    delayed = DelayedFollowerFetch(found, context.api_version, context.correlation_id)
    found.delay(delayed, request.max_wait_ms / 1000)
    return delayed
