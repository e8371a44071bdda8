"""Fetches of followers: what they ask for says what they have, which is what commits records.

A follower is believed only with the epoch of its registration: a client that poses as one would
move the high watermark (CVE-2018-1288).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace_broker.protocol.types import BrokerEpoch, NodeId
from headrace_broker.server.replica_sessions import ParkedFuture, ReplicaSession

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker
    from headrace_broker.server.context import RequestContext

REPLICA_STATE_FROM = 15
_SESSIONLESS = 0


def handle_follower(
    broker: Broker, context: RequestContext, request: FetchRequest
) -> FetchResponse | Awaitable[FetchResponse]:
    """Answer at once where there are records or an error; else wait for them, up to max_wait_ms."""
    replicas = broker.replicas
    node_id = NodeId(request.replica_state.replica_id)
    broker_epoch = BrokerEpoch(request.replica_state.replica_epoch)
    registered = replicas.host.image.brokers.get(node_id)
    if (
        context.api_version < REPLICA_STATE_FROM
        or registered is None
        or broker_epoch < registered.epoch
        or node_id == replicas.host.node_id
    ):
        return FetchResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    def make(identity: int) -> ReplicaSession:
        former = replicas.follower_sessions.get(node_id)
        if former is not None:
            broker.fetch_sessions.close(former)
        replicas.follower_sessions[node_id] = identity
        return ReplicaSession(identity, replicas, node_id, broker_epoch)

    found, error = broker.fetch_sessions.open(request, make)
    if error is not ErrorCode.NONE:
        return FetchResponse(error_code=error)
    if found is None:
        # Without a session (there are no slots for them) it is answered with what there is.
        session = ReplicaSession(_SESSIONLESS, replicas, node_id, broker_epoch)
        session.update(request, broker.config.values["headrace.fetch.session.max.partitions"])
        response = session.response()
        session.close()
        return response
    if not isinstance(found, ReplicaSession) or found.node_id != node_id:
        return FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    if found.is_due() or request.max_wait_ms <= 0:
        return found.response()
    parked = ParkedFuture(loop=asyncio.get_running_loop())
    parked.add_done_callback(lambda _: found.unpark(parked))
    found.park(parked, request.max_wait_ms / 1000)
    return parked
