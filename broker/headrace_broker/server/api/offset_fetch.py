"""OffsetFetch: what groups committed.

Versions: 1 · 2 null topics mean all, an error for the group · 3 throttle time · 4 as 3 · 5 leader
epoch (KIP-320) · 6 flexible · 7 require stable offsets (KIP-447) · 8 several groups (KIP-709) ·
9 member id and epoch (KIP-848) · 10 topic ids instead of names.
"""

from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from headrace_broker.protocol.types import TopicId
from headrace_broker.server.api.services import WithGroups, WithMetadata

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.OFFSET_FETCH

_VERSION_WITH_A_GROUP_ERROR: Final = 2
_VERSION_WITH_SEVERAL_GROUPS: Final = 8
_VERSION_WITH_TOPIC_IDS: Final = 10
_NO_OFFSET: Final = -1


class Node(WithGroups, WithMetadata, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: "RequestContext", request: OffsetFetchRequest
) -> OffsetFetchResponse:
    """Answer for each group by itself."""
    if context.api_version < _VERSION_WITH_SEVERAL_GROUPS:
        return await _one_group(broker, context, request)
    response = OffsetFetchResponse()
    for group in request.groups:
        if context.api_version >= _VERSION_WITH_TOPIC_IDS:
            response.groups.append(await _by_topic_id(broker, group, request.require_stable))
        else:
            response.groups.append(await _group(broker, group, request.require_stable))
    return response


async def _group(
    broker: Node,
    group: OffsetFetchRequestGroup,
    require_stable: bool,  # noqa: FBT001  passed on as the request has it
) -> OffsetFetchResponseGroup:
    topics = broker.metadata.topics

    def topic_id_of(name: str) -> UUID:
        found = topics.get(name)
        return UUID(int=0) if found is None else found.topic_id

    try:
        return await broker.groups.fetch_offsets(group, topic_id_of, require_stable=require_stable)
    except ApiError as error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)


async def _by_topic_id(
    broker: Node,
    group: OffsetFetchRequestGroup,
    require_stable: bool,  # noqa: FBT001  passed on as the request has it
) -> OffsetFetchResponseGroup:
    """Fetch offsets, which are kept by name: map ids to names, and back in the answer."""
    image = broker.metadata
    unknown: list[OffsetFetchRequestTopics] = []
    if group.topics is not None:
        known: list[OffsetFetchRequestTopics] = []
        for topic in group.topics:
            found = image.topics_by_id.get(TopicId(topic.topic_id))
            topic.name = "" if found is None else found.name
            (unknown if found is None else known).append(topic)
        group.topics = known
    answer = await _group(broker, group, require_stable)
    # A topic that was just deleted has no id.
    answer.topics = [topic for topic in answer.topics if topic.topic_id.int]
    if not answer.error_code:
        answer.topics += [
            OffsetFetchResponseTopics(
                topic_id=topic.topic_id,
                partitions=[
                    OffsetFetchResponsePartitions(
                        partition_index=index,
                        committed_offset=_NO_OFFSET,
                        metadata="",
                        error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in unknown
        ]
    return answer


async def _one_group(
    broker: Node, context: "RequestContext", request: OffsetFetchRequest
) -> OffsetFetchResponse:
    """Answer versions below 8: the same data in other fields."""
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    group = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
    answer = await _group(broker, group, request.require_stable)
    response = OffsetFetchResponse(error_code=answer.error_code)
    response.topics = [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=item.partition_index,
                    committed_offset=item.committed_offset,
                    committed_leader_epoch=item.committed_leader_epoch,
                    metadata=item.metadata,
                    error_code=item.error_code,
                )
                for item in topic.partitions
            ],
        )
        for topic in answer.topics
    ]
    if answer.error_code and context.api_version < _VERSION_WITH_A_GROUP_ERROR:
        response.topics = [
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=index,
                        committed_offset=_NO_OFFSET,
                        metadata="",
                        error_code=answer.error_code,
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ]
    return response
