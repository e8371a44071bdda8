"""DescribeShareGroupOffsets: how far share groups are (KIP-932).

Versions: 0 · 1 the lag (KIP-1226).
"""

from typing import TYPE_CHECKING, Protocol

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from headrace_broker.server.api.services import WithShares

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS


class Node(WithShares, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: "RequestContext", request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    """Describe each group by itself."""
    del context
    return DescribeShareGroupOffsetsResponse(
        groups=[await _describe(broker, group) for group in request.groups]
    )


async def _describe(
    broker: Node, asked: DescribeShareGroupOffsetsRequestGroup
) -> DescribeShareGroupOffsetsResponseGroup:
    group = DescribeShareGroupOffsetsResponseGroup(group_id=asked.group_id)
    wanted = None
    if asked.topics is not None:
        wanted = {topic.topic_name: topic.partitions for topic in asked.topics}
    try:
        positions = await broker.shares.administration.positions(asked.group_id, wanted)
    except ApiError as error:
        group.error_code, group.error_message = error.code, error.message
        return group
    topics: dict[str, DescribeShareGroupOffsetsResponseTopic] = {}
    for (name, index), position in sorted(positions.items(), key=lambda item: item[0]):
        topic = topics.setdefault(
            name,
            DescribeShareGroupOffsetsResponseTopic(topic_name=name, topic_id=position.topic_id),
        )
        partition = DescribeShareGroupOffsetsResponsePartition(
            partition_index=index,
            start_offset=position.start_offset,
            leader_epoch=position.leader_epoch,
            lag=position.lag,
        )
        if position.error is not None:
            partition.error_code = position.error.code
            partition.error_message = position.error.message
        topic.partitions.append(partition)
    group.topics = list(topics.values())
    return group
