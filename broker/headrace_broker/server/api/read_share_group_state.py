"""ReadShareGroupState: a partition's leader takes over its state for a share group (KIP-932).

Versions: 0.
"""

from typing import TYPE_CHECKING, Protocol

from headrace_broker.coordinator.share_state.state import ShareKey
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.read_share_group_state import (
    PartitionData,
    PartitionResult,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadStateResult,
    StateBatch,
)
from headrace_broker.server.api.services import WithShares
from headrace_broker.server.shares.state_requests import answer_each

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.READ_SHARE_GROUP_STATE


class Node(WithShares, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: "RequestContext", request: ReadShareGroupStateRequest
) -> ReadShareGroupStateResponse:
    """Answer once former leaders are certainly fenced; each partition has its own outcome."""
    del context
    response = ReadShareGroupStateResponse()

    async def act(key: ShareKey, asked: PartitionData, outcome: PartitionResult) -> None:
        state = await broker.shares.coordinator.read(key, asked.leader_epoch)
        outcome.state_epoch = state.state_epoch
        outcome.start_offset = state.start_offset
        outcome.state_batches = [
            StateBatch(
                first_offset=batch.first_offset,
                last_offset=batch.last_offset,
                delivery_state=batch.delivery_state,
                delivery_count=batch.delivery_count,
            )
            for batch in state.batches
        ]

    await answer_each(request, response.results, (ReadStateResult, PartitionResult), act)
    return response
