"""ShareGroupHeartbeat: join, keep and leave a share group (KIP-932).

Versions: 1.
"""

from typing import TYPE_CHECKING, Protocol

from headrace_broker.metadata.brokers.registration import SHARE_VERSION_FEATURE
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from headrace_broker.server.api.services import WithGroups, WithMetadata

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.SHARE_GROUP_HEARTBEAT


class Node(WithGroups, WithMetadata, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: "RequestContext", request: ShareGroupHeartbeatRequest
) -> ShareGroupHeartbeatResponse:
    """Answer once the decision is committed; refused while share.version is 0."""
    if SHARE_VERSION_FEATURE not in broker.metadata.features:
        return ShareGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    try:
        return await broker.groups.share_heartbeat(request, context)
    except ApiError as error:
        return ShareGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
