"""ReadShareGroupStateSummary: how far a share group is with its partitions (KIP-932).

Versions: 0 · 1 the count of offsets whose delivery is complete (KIP-1226).
"""

from typing import TYPE_CHECKING, Protocol

from headrace_broker.coordinator.share_state.state import ShareKey
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.read_share_group_state_summary import (
    PartitionData,
    PartitionResult,
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    ReadStateSummaryResult,
)
from headrace_broker.server.api.services import WithShares
from headrace_broker.server.shares.state_requests import answer_each

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.READ_SHARE_GROUP_STATE_SUMMARY


class Node(WithShares, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: "RequestContext", request: ReadShareGroupStateSummaryRequest
) -> ReadShareGroupStateSummaryResponse:
    """Summarize each partition by itself; one without state has start offset -1."""
    del context
    response = ReadShareGroupStateSummaryResponse()

    async def act(key: ShareKey, asked: PartitionData, outcome: PartitionResult) -> None:
        del asked
        state = await broker.shares.coordinator.summarize(key)
        outcome.state_epoch = state.state_epoch
        outcome.leader_epoch = state.leader_epoch
        outcome.start_offset = state.start_offset
        outcome.delivery_complete_count = state.complete_count

    await answer_each(request, response.results, (ReadStateSummaryResult, PartitionResult), act)
    return response
