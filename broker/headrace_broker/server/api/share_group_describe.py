"""ShareGroupDescribe: epochs, members and assignments of share groups (KIP-932).

Versions: 1.
"""

from typing import TYPE_CHECKING, Protocol

from headrace_broker.metadata.brokers.registration import SHARE_VERSION_FEATURE
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from headrace_broker.server.api.describe_groups import describe_each
from headrace_broker.server.api.services import WithGroups, WithMetadata

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.SHARE_GROUP_DESCRIBE


class Node(WithGroups, WithMetadata, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: "RequestContext", request: ShareGroupDescribeRequest
) -> ShareGroupDescribeResponse:
    """Describe each group by itself."""
    del context
    is_on = SHARE_VERSION_FEATURE in broker.metadata.features
    groups = await describe_each(
        request.group_ids,
        DescribedGroup,
        broker.groups.describe_share_group,
        missing_feature=None if is_on else SHARE_VERSION_FEATURE,
        with_operations=request.include_authorized_operations,
    )
    return ShareGroupDescribeResponse(groups=groups)
