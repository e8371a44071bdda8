"""LeaveGroup: members go, or are removed by an administrator.

Versions: 0 · 1 throttle time · 2 as 1 · 3 several members, static ones by instance id (KIP-345) ·
4 flexible · 5 reason (KIP-800).
"""

from typing import TYPE_CHECKING

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)

if TYPE_CHECKING:
    from headrace_broker.server.api.services import WithGroups
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.LEAVE_GROUP
_SEVERAL_MEMBERS_FROM = 3


async def handle(
    broker: "WithGroups", context: "RequestContext", request: LeaveGroupRequest
) -> LeaveGroupResponse:
    """Each member has its own error; an error of the group stands for all.

    If the group does not exist, or is a share group, every member is unknown, as in Kafka.
    """
    try:
        return await broker.groups.leave_group(request, context)
    except ApiError as error:
        is_of_members = context.api_version >= _SEVERAL_MEMBERS_FROM
        if error.code is not ErrorCode.UNKNOWN_MEMBER_ID or not is_of_members:
            return LeaveGroupResponse(error_code=error.code)
        return LeaveGroupResponse(
            members=[
                MemberResponse(
                    member_id=each.member_id,
                    group_instance_id=each.group_instance_id,
                    error_code=error.code,
                )
                for each in request.members
            ]
        )
