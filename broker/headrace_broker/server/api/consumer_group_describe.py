"""ConsumerGroupDescribe: epochs, members and assignments of consumer groups (KIP-848).

Versions: 0 · 1 each member's protocol (KIP-1099).
"""

from typing import TYPE_CHECKING, Protocol

from headrace_broker.metadata.brokers.registration import GROUP_VERSION_FEATURE
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from headrace_broker.server.api.describe_groups import ALL_OPERATIONS_ON_A_GROUP
from headrace_broker.server.api.services import WithGroups, WithMetadata

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.CONSUMER_GROUP_DESCRIBE


class Node(WithGroups, WithMetadata, Protocol):
    """What this handler needs of the node."""


async def handle(
    broker: Node, context: "RequestContext", request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Describe each group by itself."""
    del context
    response = ConsumerGroupDescribeResponse()
    is_on = GROUP_VERSION_FEATURE in broker.metadata.features
    for group_id in request.group_ids:
        try:
            if not is_on:
                raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "group.version is 0")
            if not group_id:
                raise ApiError(ErrorCode.INVALID_GROUP_ID, "a group id is not empty")
            described = await broker.groups.describe_consumer_group(group_id)
        except ApiError as error:
            described = DescribedGroup(
                group_id=group_id, error_code=error.code, error_message=error.message
            )
        if request.include_authorized_operations and not described.error_code:
            described.authorized_operations = ALL_OPERATIONS_ON_A_GROUP
        response.groups.append(described)
    return response
