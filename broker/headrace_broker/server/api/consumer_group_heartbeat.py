"""ConsumerGroupHeartbeat: join, keep and leave a consumer group (KIP-848).

Versions: 0 · 1 subscription by a regular expression, and a member id that the client makes.
"""

from typing import TYPE_CHECKING, Protocol

from headrace_broker.metadata.brokers.registration import GROUP_VERSION_FEATURE
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from headrace_broker.server.api.services import WithGroups, WithMetadata

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.CONSUMER_GROUP_HEARTBEAT


class Node(WithGroups, WithMetadata, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: "RequestContext", request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    """Answer once the decision is committed; refused while group.version is 0."""
    if GROUP_VERSION_FEATURE not in broker.metadata.features:
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    try:
        return await broker.groups.consumer_heartbeat(request, context)
    except ApiError as error:
        return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
