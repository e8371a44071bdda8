"""OffsetCommit: a group's position in partitions, kept until it moves or expires.

Versions: 2 retention time · 3 throttle time · 4 as 3 · 5 no retention time (KIP-211) · 6 leader
epoch (KIP-320) · 7 static members (KIP-345) · 8 flexible · 9 GROUP_ID_NOT_FOUND for a group that is
not there (KIP-848) · 10 topic ids instead of names.
"""

from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from headrace_broker.protocol.types import PartitionIndex, TopicId
from headrace_broker.server.api.services import WithGroups, WithMetadata

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.OFFSET_COMMIT

_VERSION_WITH_TOPIC_IDS: Final = 10


class Node(WithGroups, WithMetadata, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: "RequestContext", request: OffsetCommitRequest
) -> OffsetCommitResponse:
    """Commit offsets of existing topics; each partition has its own error."""
    image = broker.metadata
    has_ids = context.api_version >= _VERSION_WITH_TOPIC_IDS
    for topic in request.topics:
        found = (
            image.topics_by_id.get(TopicId(topic.topic_id))
            if has_ids
            else image.topics.get(topic.name)
        )
        topic.name = found.name if found is not None else topic.name
        if found is not None:
            topic.topic_id = found.topic_id
        elif not has_ids:
            topic.topic_id = UUID(int=0)
    missing = ErrorCode.UNKNOWN_TOPIC_ID if has_ids else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def check_partition(topic: OffsetCommitRequestTopic, index: int) -> ErrorCode:
        found = image.topics.get(topic.name)
        if found is None:
            return missing
        if PartitionIndex(index) not in found.partitions:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE

    try:
        return await broker.groups.commit_offsets(request, context, check_partition)
    except ApiError as error:
        return _refusal(request, error.code)


def _refusal(request: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    """Return one error for every partition: the response has no top-level error."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
