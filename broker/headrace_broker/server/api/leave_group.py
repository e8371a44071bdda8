"""LeaveGroup: members go, or are removed by an administrator.

Versions: 0 · 1 throttle time · 2 as 1 · 3 several members, static ones by instance id (KIP-345) ·
4 flexible · 5 reason (KIP-800).
"""

from typing import TYPE_CHECKING

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse

if TYPE_CHECKING:
    from headrace_broker.server.api.services import WithGroups
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.LEAVE_GROUP


async def handle(
    broker: "WithGroups", context: "RequestContext", request: LeaveGroupRequest
) -> LeaveGroupResponse:
    """Each member has its own error; one of the group stands for all."""
    try:
        return await broker.groups.leave_group(request, context)
    except ApiError as error:
        return LeaveGroupResponse(error_code=error.code)
