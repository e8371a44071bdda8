"""DeleteGroups: end empty groups and their offsets (KIP-229).

Versions: 0 · 1 as 0 · 2 flexible.
"""

from typing import TYPE_CHECKING, Protocol

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from headrace_broker.server.api.services import WithGroups, WithShares

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.DELETE_GROUPS


class Node(WithGroups, WithShares, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: "RequestContext", request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    """Delete each group by itself; one that is named again is answered once, as in Kafka."""
    response = DeleteGroupsResponse()
    for group_id in dict.fromkeys(request.groups_names):
        try:
            await broker.shares.administration.delete_all(group_id)
            result = await broker.groups.delete_group(group_id, context)
        except ApiError as error:
            result = DeletableGroupResult(group_id=group_id, error_code=error.code)
        response.results.append(result)
    return response
