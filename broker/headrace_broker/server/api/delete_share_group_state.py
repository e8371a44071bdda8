"""DeleteShareGroupState: end the state of a share group's partitions (KIP-932).

Versions: 0.
"""

from typing import TYPE_CHECKING, Protocol

from headrace_broker.coordinator.share_state.state import ShareKey
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
    DeleteStateResult,
    PartitionResult,
)
from headrace_broker.server.api.services import WithShares

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.DELETE_SHARE_GROUP_STATE


class Node(WithShares, Protocol):
    """What this handler needs of the node."""


async def handle(
    broker: Node, context: "RequestContext", request: DeleteShareGroupStateRequest
) -> DeleteShareGroupStateResponse:
    """Answer when it is durable; each partition has its own outcome."""
    del context
    response = DeleteShareGroupStateResponse()
    for topic in request.topics:
        result = DeleteStateResult(topic_id=topic.topic_id)
        response.results.append(result)
        for asked in topic.partitions:
            outcome = PartitionResult(partition=asked.partition)
            result.partitions.append(outcome)
            key = ShareKey(
                group_id=request.group_id, topic_id=topic.topic_id, partition=asked.partition
            )
            try:
                await broker.shares.coordinator.delete(key)
            except ApiError as error:
                outcome.error_code, outcome.error_message = error.code, error.message
    return response
