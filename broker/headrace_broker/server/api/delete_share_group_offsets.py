"""DeleteShareGroupOffsets: have an empty share group forget topics (KIP-932).

Versions: 0.
"""

from typing import TYPE_CHECKING, Protocol

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from headrace_broker.protocol.schema import ZERO_UUID
from headrace_broker.server.api.services import WithMetadata, WithShares

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.DELETE_SHARE_GROUP_OFFSETS


class Node(WithMetadata, WithShares, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: "RequestContext", request: DeleteShareGroupOffsetsRequest
) -> DeleteShareGroupOffsetsResponse:
    """Answer when it is durable; each topic has its own outcome."""
    del context
    names = [topic.topic_name for topic in request.topics]
    try:
        outcomes = await broker.shares.administration.delete(request.group_id, names)
    except ApiError as error:
        return DeleteShareGroupOffsetsResponse(error_code=error.code, error_message=error.message)
    response = DeleteShareGroupOffsetsResponse()
    for name, refusal in outcomes.items():
        known = broker.metadata.topics.get(name)
        topic = DeleteShareGroupOffsetsResponseTopic(
            topic_name=name, topic_id=ZERO_UUID if known is None else known.topic_id
        )
        if refusal is not None:
            topic.error_code, topic.error_message = refusal.code, refusal.message
        response.responses.append(topic)
    return response
