"""ShareAcknowledge: say what became of records that were acquired (KIP-932).

Versions: 1 · 2 renewal of locks (KIP-1222).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace_broker.metadata.brokers.registration import SHARE_VERSION_FEATURE
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.share_acknowledge import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)
from headrace_broker.server.api.services import WithMetadata, WithShares
from headrace_broker.server.membership.leader_hints import HINTED, LeaderHints
from headrace_broker.server.shares.acknowledgements import (
    Acknowledging,
    by_topic,
    check_names,
    said_in,
)
from headrace_broker.server.shares.share_sessions import FINAL_EPOCH, OPENING_EPOCH

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext
    from headrace_broker.server.shares.share_sessions import TopicIdPartition

API_KEY = ApiKey.SHARE_ACKNOWLEDGE


class Node(WithMetadata, WithShares, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: RequestContext, request: ShareAcknowledgeRequest
) -> ShareAcknowledgeResponse:
    """Answer when the acknowledgements are durable; each partition has its own outcome."""
    try:
        if SHARE_VERSION_FEATURE not in broker.metadata.features:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "share.version is 0")
        group_id, member_id = check_names(request.group_id, request.member_id)
        if request.share_session_epoch == OPENING_EPOCH:
            raise ApiError(ErrorCode.INVALID_SHARE_SESSION_EPOCH, "ShareFetch opens sessions")
        session = broker.shares.partitions.sessions.take(
            group_id, member_id, request.share_session_epoch
        )
    except ApiError as error:
        return ShareAcknowledgeResponse(error_code=error.code, error_message=error.message)
    acknowledging = Acknowledging(
        broker.shares.partitions, group_id, member_id, may_renew=request.is_renew_ack
    )
    acknowledging.begin(said_in(request.topics))
    await acknowledging.finish()
    if request.share_session_epoch == FINAL_EPOCH:
        broker.shares.partitions.close_session(session)
    found: dict[TopicIdPartition, PartitionData] = {}
    hints = LeaderHints(broker.metadata, context.listener)
    for where, refusal in acknowledging.errors.items():
        data = found[where] = PartitionData(partition_index=where[1])
        if refusal is not None:
            data.error_code, data.error_message = refusal.code, refusal.message
        if data.error_code in HINTED:
            leader, epoch = hints.leader_of(where[0], "", where[1])
            data.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
    topics = by_topic(
        found,
        lambda topic_id, items: ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=items),
    )
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=broker.shares.partitions.configs.of(group_id).limits.lock_ms,
        responses=topics,
        node_endpoints=[
            NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in hints.endpoints()
        ],
    )
