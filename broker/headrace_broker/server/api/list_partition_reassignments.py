"""ListPartitionReassignments: the moves of replicas that are on their way (KIP-455).

Versions: 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_broker.metadata.decision import MetadataDecision
from headrace_broker.metadata.reassignments import list_reassignments
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from headrace_broker.server.api.services import WithController
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.LIST_PARTITION_REASSIGNMENTS
FORWARDED = True


async def handle(
    broker: WithController, context: RequestContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """List reassignments as the active controller knows them, including those just begun."""
    del context
    try:
        return await broker.controller.submit(
            lambda image: MetadataDecision(records=[], response=list_reassignments(image, request))
        )
    except ApiError as error:
        return ListPartitionReassignmentsResponse(
            error_code=error.code, error_message=error.message
        )
