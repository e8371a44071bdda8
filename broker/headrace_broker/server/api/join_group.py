"""JoinGroup: become a member of a classic group.

Versions: 0 · 1 a rebalance timeout of its own (KIP-62) · 2 throttle time · 3 as 2 · 4 a first join
is answered MEMBER_ID_REQUIRED (KIP-394) · 5 static members (KIP-345) · 6 flexible · 7 protocol type
in the answer (KIP-559) · 8 reason (KIP-800) · 9 a leader may have to skip assignment (KIP-814).
"""

from typing import TYPE_CHECKING

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse

if TYPE_CHECKING:
    from headrace_broker.server.api.services import WithGroups
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.JOIN_GROUP
CANCEL_ON_DISCONNECT = True  # it may wait for minutes; the member's session expires by itself


async def handle(
    broker: "WithGroups", context: "RequestContext", request: JoinGroupRequest
) -> JoinGroupResponse:
    """Wait for the join phase to end; errors carry the member id that they are about."""
    try:
        return await broker.groups.join_group(request, context)
    except ApiError as error:
        return JoinGroupResponse(error_code=error.code, member_id=request.member_id)
