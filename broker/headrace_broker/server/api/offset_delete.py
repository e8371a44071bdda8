"""OffsetDelete: forget a group's position in topics that it does not subscribe to (KIP-496).

Version: 0.
"""

from typing import TYPE_CHECKING, Protocol

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)
from headrace_broker.server.api.services import WithGroups, WithMetadata

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.OFFSET_DELETE


class Node(WithGroups, WithMetadata, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: "RequestContext", request: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    """Each partition has its own error; one of the group stands for all."""
    topics = broker.metadata.topics
    try:
        if not request.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID, "a group id is not empty")
        return await broker.groups.delete_offsets(request, context, topics.__contains__)
    except ApiError as error:
        return OffsetDeleteResponse(error_code=error.code)
