"""ShareFetch: acquire records of a share group, and say what became of former ones (KIP-932).

Versions: 1 · 2 acquire mode (KIP-1206), renewal of locks (KIP-1222).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from headrace_broker.metadata.brokers.registration import SHARE_VERSION_FEATURE
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.share_fetch import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from headrace_broker.server.api.services import (
    WithBudget,
    WithConfig,
    WithMetadata,
    WithShares,
)
from headrace_broker.server.membership.leader_hints import HINTED, LeaderHints
from headrace_broker.server.shares.acknowledgements import (
    Acknowledging,
    by_topic,
    check_names,
    connection_of,
    said_in,
)
from headrace_broker.server.shares.share_fetch import FetchBounds, ShareFetch
from headrace_broker.server.shares.share_sessions import (
    FINAL_EPOCH,
    OPENING_EPOCH,
    ShareSession,
)

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext
    from headrace_broker.server.shares.share_sessions import TopicIdPartition

API_KEY = ApiKey.SHARE_FETCH
CANCEL_ON_DISCONNECT = True

_RECORD_LIMIT: Final = 1  # ShareAcquireMode


class Node(WithBudget, WithConfig, WithMetadata, WithShares, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: RequestContext, request: ShareFetchRequest
) -> ShareFetchResponse:
    """Answer when records are acquired or max_wait_ms is over, and acknowledgements are durable.

    A refused acknowledgement is an error of its partition only; all else is still served.
    """
    try:
        if SHARE_VERSION_FEATURE not in broker.metadata.features:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "share.version is 0")
        group_id, member_id = check_names(request.group_id, request.member_id)
        session = _session(broker, context, request, group_id, member_id)
    except ApiError as error:
        return ShareFetchResponse(error_code=error.code, error_message=error.message)
    acknowledging = Acknowledging(
        broker.shares.partitions, group_id, member_id, may_renew=request.is_renew_ack
    )
    acknowledging.begin(said_in(request.topics))
    fetch = ShareFetch(broker.shares.partitions, session, _bounds(broker, request))
    is_final = request.share_session_epoch == FINAL_EPOCH
    if not is_final and not request.is_renew_ack:
        await fetch.run()
    await acknowledging.finish()
    if is_final:
        broker.shares.partitions.close_session(session)
    return _response(broker, context, fetch, acknowledging, group_id)


def _session(
    broker: Node,
    context: RequestContext,
    request: ShareFetchRequest,
    group_id: str,
    member_id: str,
) -> ShareSession:
    if request.is_renew_ack and (
        request.max_wait_ms or request.min_bytes or request.max_bytes or request.max_records
    ):
        raise ApiError(ErrorCode.INVALID_REQUEST, "a request that renews locks fetches nothing")
    shares = broker.shares.partitions
    named = [
        (topic.topic_id, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    ]
    if request.share_session_epoch == OPENING_EPOCH:
        if said_in(request.topics):
            raise ApiError(
                ErrorCode.INVALID_REQUEST, "the first request of a session acknowledges nothing"
            )
        session = shares.open_session(group_id, member_id, connection_of(context))
        try:
            session.change(named, ())
        except ApiError:
            shares.close_session(session)
            raise
        return session
    session = shares.sessions.take(group_id, member_id, request.share_session_epoch)
    gone = [
        (topic.topic_id, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]
    session.change(named, gone)
    return session


def _bounds(broker: Node, request: ShareFetchRequest) -> FetchBounds:
    values = broker.config.values
    max_bytes = max(1, min(request.max_bytes, values["fetch.max.bytes"]))
    return FetchBounds(
        max_wait_ms=min(request.max_wait_ms, values["headrace.fetch.max.wait.ms"]),
        min_bytes=min(request.min_bytes, max_bytes),
        max_bytes=max(1, min(max_bytes, broker.budget.left)),
        records_max=request.max_records,
        batch_size=request.batch_size,
        is_strict=request.share_acquire_mode == _RECORD_LIMIT,
    )


def _response(
    broker: Node,
    context: RequestContext,
    fetch: ShareFetch,
    acknowledging: Acknowledging,
    group_id: str,
) -> ShareFetchResponse:
    found: dict[TopicIdPartition, PartitionData] = dict(fetch.found)
    for where, error in acknowledging.errors.items():
        data = found.setdefault(where, PartitionData(partition_index=where[1], records=b""))
        if error is not None:
            data.acknowledge_error_code = error.code
            data.acknowledge_error_message = error.message
    hints = LeaderHints(broker.metadata, context.listener)
    for (topic_id, index), data in found.items():
        if data.error_code in HINTED or data.acknowledge_error_code in HINTED:
            leader, epoch = hints.leader_of(topic_id, "", index)
            data.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
    topics = by_topic(
        found,
        lambda topic_id, items: ShareFetchableTopicResponse(topic_id=topic_id, partitions=items),
    )
    return ShareFetchResponse(
        acquisition_lock_timeout_ms=broker.shares.partitions.configs.of(group_id).limits.lock_ms,
        responses=topics,
        node_endpoints=[
            NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in hints.endpoints()
        ],
    )
