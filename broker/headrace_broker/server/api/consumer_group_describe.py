"""ConsumerGroupDescribe: epochs, members and assignments of consumer groups (KIP-848).

Versions: 0 · 1 each member's protocol (KIP-1099).
"""

from typing import TYPE_CHECKING, Protocol

from headrace_broker.metadata.brokers.registration import GROUP_VERSION_FEATURE
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from headrace_broker.server.api.describe_groups import describe_each
from headrace_broker.server.api.services import WithGroups, WithMetadata

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.CONSUMER_GROUP_DESCRIBE


class Node(WithGroups, WithMetadata, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: "RequestContext", request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Describe each group by itself."""
    del context
    is_on = GROUP_VERSION_FEATURE in broker.metadata.features
    groups = await describe_each(
        request.group_ids,
        DescribedGroup,
        broker.groups.describe_consumer_group,
        missing_feature=None if is_on else GROUP_VERSION_FEATURE,
        with_operations=request.include_authorized_operations,
    )
    return ConsumerGroupDescribeResponse(groups=groups)
