"""DescribeGroups: state, members and assignments of groups.

Versions: 0 · 1 throttle time · 2 as 1 · 3 authorized operations (KIP-430) · 4 group instance ids
(KIP-345) · 5 flexible · 6 GROUP_ID_NOT_FOUND for a group that is not there (KIP-1043).
"""

from typing import TYPE_CHECKING, Final

from headrace_broker.coordinator.states import GroupState
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

if TYPE_CHECKING:
    from headrace_broker.server.api.services import WithGroups
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.DESCRIBE_GROUPS

# Bits by AclOperation's codes: read, delete, describe, describe configs, alter configs.
ALL_OPERATIONS_ON_A_GROUP: Final = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11


async def handle(
    broker: "WithGroups", context: "RequestContext", request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    """Describe each group by itself."""
    response = DescribeGroupsResponse()
    for group_id in request.groups:
        try:
            described = await broker.groups.describe_group(group_id, context)
        except ApiError as error:
            described = DescribedGroup(group_id=group_id, error_code=error.code)
        is_there = described.group_state not in {"", GroupState.DEAD.value}
        if request.include_authorized_operations and is_there:
            described.authorized_operations = ALL_OPERATIONS_ON_A_GROUP
        response.groups.append(described)
    return response
