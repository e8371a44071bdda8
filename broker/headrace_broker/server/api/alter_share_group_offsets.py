"""AlterShareGroupOffsets: have an empty share group begin elsewhere (KIP-932).

Versions: 0.
"""

from typing import TYPE_CHECKING, Protocol

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)
from headrace_broker.protocol.schema import ZERO_UUID
from headrace_broker.server.api.services import WithMetadata, WithShares

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.ALTER_SHARE_GROUP_OFFSETS


class Node(WithMetadata, WithShares, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: "RequestContext", request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    """Answer when it is durable; each partition has its own outcome."""
    del context
    offsets = {
        (topic.topic_name, partition.partition_index): partition.start_offset
        for topic in request.topics
        for partition in topic.partitions
    }
    try:
        outcomes = await broker.shares.administration.alter(request.group_id, offsets)
    except ApiError as error:
        return AlterShareGroupOffsetsResponse(error_code=error.code, error_message=error.message)
    topics: dict[str, AlterShareGroupOffsetsResponseTopic] = {}
    for (name, index), refusal in outcomes.items():
        known = broker.metadata.topics.get(name)
        topic = topics.setdefault(
            name,
            AlterShareGroupOffsetsResponseTopic(
                topic_name=name, topic_id=ZERO_UUID if known is None else known.topic_id
            ),
        )
        outcome = AlterShareGroupOffsetsResponsePartition(partition_index=index)
        if refusal is not None:
            outcome.error_code, outcome.error_message = refusal.code, refusal.message
        topic.partitions.append(outcome)
    return AlterShareGroupOffsetsResponse(responses=list(topics.values()))
