"""InitializeShareGroupState: begin the state of a share group's partitions (KIP-932).

Versions: 0.
"""

from typing import TYPE_CHECKING, Protocol

from headrace_broker.coordinator.share_state.state import ShareKey
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
    InitializeStateResult,
    PartitionData,
    PartitionResult,
)
from headrace_broker.server.api.services import WithShares
from headrace_broker.server.shares.state_requests import answer_each

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.INITIALIZE_SHARE_GROUP_STATE


class Node(WithShares, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: "RequestContext", request: InitializeShareGroupStateRequest
) -> InitializeShareGroupStateResponse:
    """Answer when it is durable; each partition has its own outcome."""
    del context
    response = InitializeShareGroupStateResponse()

    async def act(key: ShareKey, asked: PartitionData, outcome: PartitionResult) -> None:
        del outcome
        await broker.shares.coordinator.initialize(key, asked.state_epoch, asked.start_offset)

    await answer_each(request, response.results, (InitializeStateResult, PartitionResult), act)
    return response
