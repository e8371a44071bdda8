"""WriteShareGroupState: a partition's leader says what a share group has done with it (KIP-932).

Versions: 0 · 1 the count of offsets whose delivery is complete (KIP-1226).
"""

import asyncio
from typing import TYPE_CHECKING, Protocol

from headrace_broker.coordinator.share_partition.partition import StateBatch
from headrace_broker.coordinator.share_state.shard import StateChange
from headrace_broker.coordinator.share_state.state import ShareKey
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.write_share_group_state import (
    PartitionData,
    PartitionResult,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
    WriteStateResult,
)
from headrace_broker.server.api.services import WithShares

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.WRITE_SHARE_GROUP_STATE


class Node(WithShares, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: "RequestContext", request: WriteShareGroupStateRequest
) -> WriteShareGroupStateResponse:
    """Answer when it is durable; each partition has its own outcome."""
    del context
    topics = [
        asyncio.gather(
            *(
                _write(
                    broker,
                    ShareKey(
                        group_id=request.group_id,
                        topic_id=topic.topic_id,
                        partition=asked.partition,
                    ),
                    asked,
                )
                for asked in topic.partitions
            )
        )
        for topic in request.topics
    ]
    return WriteShareGroupStateResponse(
        results=[
            WriteStateResult(topic_id=topic.topic_id, partitions=await written)
            for topic, written in zip(request.topics, topics, strict=True)
        ]
    )


async def _write(broker: Node, key: ShareKey, asked: PartitionData) -> PartitionResult:
    change = StateChange(
        state_epoch=asked.state_epoch,
        leader_epoch=asked.leader_epoch,
        start_offset=asked.start_offset,
        complete_count=asked.delivery_complete_count,
        batches=tuple(
            StateBatch(
                first_offset=batch.first_offset,
                last_offset=batch.last_offset,
                delivery_state=batch.delivery_state,
                delivery_count=batch.delivery_count,
            )
            for batch in asked.state_batches
        ),
    )
    outcome = PartitionResult(partition=key.partition)
    try:
        await broker.shares.coordinator.write(key, change)
    except ApiError as error:
        outcome.error_code, outcome.error_message = error.code, error.message
    return outcome
