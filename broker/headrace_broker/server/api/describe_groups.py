"""DescribeGroups: state, members and assignments of groups.

Versions: 0 · 1 throttle time · 2 as 1 · 3 authorized operations (KIP-430) · 4 group instance ids
(KIP-345) · 5 flexible · 6 GROUP_ID_NOT_FOUND for a group that is not there (KIP-1043).
"""

from typing import TYPE_CHECKING, Any, Final

from headrace_broker.coordinator.states import GroupState
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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


async def describe_each(
    group_ids: list[str],
    make: "Callable[..., Any]",
    describe: "Callable[[str], Awaitable[Any]]",
    *,
    missing_feature: str | None,
    with_operations: bool,
) -> list[Any]:
    """Describe groups of one modern kind, each by itself, like ConsumerGroupDescribe.

    `make` creates the result of a group that cannot be described. `missing_feature` names the
    feature if its level is 0: then there are no such groups.
    """
    groups = []
    for group_id in group_ids:
        try:
            if missing_feature is not None:
                raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"{missing_feature} is 0")
            if not group_id:
                raise ApiError(ErrorCode.INVALID_GROUP_ID, "a group id is not empty")
            described = await describe(group_id)
        except ApiError as error:
            described = make(group_id=group_id, error_code=error.code, error_message=error.message)
        if with_operations and not described.error_code:
            described.authorized_operations = ALL_OPERATIONS_ON_A_GROUP
        groups.append(described)
    return groups
