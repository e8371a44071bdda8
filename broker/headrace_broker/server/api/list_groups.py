"""ListGroups: the groups that this broker coordinates.

Versions: 0 · 1 throttle time · 2 as 1 · 3 flexible · 4 filter by state (KIP-518) · 5 filter by type
(KIP-848).
"""

from typing import TYPE_CHECKING

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from headrace_broker.server.api.services import WithGroups
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.LIST_GROUPS


def handle(
    broker: "WithGroups", context: "RequestContext", request: ListGroupsRequest
) -> ListGroupsResponse:
    """List all groups, or report that some partitions are still loading."""
    del context
    try:
        return ListGroupsResponse(groups=broker.groups.list_groups(request))
    except ApiError as error:
        return ListGroupsResponse(error_code=error.code)
