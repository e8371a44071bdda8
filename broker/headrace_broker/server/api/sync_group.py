"""SyncGroup: hand in the leader's assignment, or wait for it.

Versions: 0 · 1 throttle time · 2 as 1 · 3 static members (KIP-345) · 4 flexible · 5 protocol type
and name, both ways (KIP-559).
"""

from typing import TYPE_CHECKING

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from headrace_broker.server.api.services import WithGroups
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.SYNC_GROUP
_NAMES_ARE_MANDATORY_FROM = 5
CANCEL_ON_DISCONNECT = True  # it may wait for minutes; the member's session expires by itself


async def handle(
    broker: "WithGroups", context: "RequestContext", request: SyncGroupRequest
) -> SyncGroupResponse:
    """Answer with the member's own assignment.

    From version 5 on, protocol type and name are required in every kind of group (KIP-559).
    """
    names = (request.protocol_type, request.protocol_name)
    if context.api_version >= _NAMES_ARE_MANDATORY_FROM and None in names:
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    try:
        return await broker.groups.sync_group(request, context)
    except ApiError as error:
        return SyncGroupResponse(error_code=error.code)
