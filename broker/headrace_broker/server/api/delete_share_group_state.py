"""DeleteShareGroupState: end the state of a share group's partitions (KIP-932).

Versions: 0.
"""

from typing import TYPE_CHECKING, Protocol

from headrace_broker.coordinator.share_state.state import ShareKey
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    DeleteStateResult,
    PartitionData,
    PartitionResult,
)
from headrace_broker.server.api.services import WithShares
from headrace_broker.server.shares.state_requests import answer_each

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.DELETE_SHARE_GROUP_STATE


class Node(WithShares, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: "RequestContext", request: DeleteShareGroupStateRequest
) -> DeleteShareGroupStateResponse:
    """Answer when it is durable; each partition has its own outcome."""
    del context
    response = DeleteShareGroupStateResponse()

    async def act(key: ShareKey, asked: PartitionData, outcome: PartitionResult) -> None:
        del asked, outcome
        await broker.shares.coordinator.delete(key)

    await answer_each(request, response.results, (DeleteStateResult, PartitionResult), act)
    return response
