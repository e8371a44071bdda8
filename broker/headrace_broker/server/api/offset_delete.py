"""OffsetDelete: forget a group's position in topics that it does not subscribe to (KIP-496).

Version: 0.
"""

from typing import TYPE_CHECKING

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker
    from headrace_broker.server.context import RequestContext

API_KEY = ApiKey.OFFSET_DELETE


async def handle(
    broker: "Broker", context: "RequestContext", request: OffsetDeleteRequest
) -> OffsetDeleteResponse:
    """Each partition has its own error; one of the group stands for all."""
    topics = broker.metadata.topics
    try:
        return await broker.groups.delete_offsets(request, context, topics.__contains__)
    except ApiError as error:
        return OffsetDeleteResponse(error_code=error.code)
