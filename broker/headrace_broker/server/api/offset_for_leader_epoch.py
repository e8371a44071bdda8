"""OffsetForLeaderEpoch: where a leader epoch ended, so that a follower finds what it lost.

Versions: 2 current leader epoch (KIP-320) · 3 replica id · 4 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from headrace_broker.server.api.services import WithReplicas
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.OFFSET_FOR_LEADER_EPOCH


def handle(
    broker: WithReplicas, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Answer each partition from its epoch cache."""
    topics = []
    for topic in request.topics:
        answers = []
        for asked in topic.partitions:
            answer = EpochEndOffset(partition=asked.partition, leader_epoch=-1, end_offset=-1)
            try:
                partition = broker.replicas.partition(topic.topic, asked.partition)
                partition.check_leader(asked.current_leader_epoch)
                epoch, end = partition.end_offset_for(asked.leader_epoch)
                answer.leader_epoch, answer.end_offset = epoch, end
            except ApiError as error:
                answer.error_code = error.code
            answers.append(answer)
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=answers))
    return OffsetForLeaderEpochResponse(topics=topics)
