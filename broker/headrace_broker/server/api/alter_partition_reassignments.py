"""AlterPartitionReassignments: begin, change or cancel moves of replicas (KIP-455).

Versions: 0 · 1 the replication factor may be protected (KIP-860).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_broker.metadata.reassignments import decide_alter_reassignments
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from headrace_broker.server.api.services import WithController
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.ALTER_PARTITION_REASSIGNMENTS
FORWARDED = True


async def handle(
    broker: WithController, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Change reassignments; each partition has its own outcome."""
    del context
    controller = broker.controller
    try:
        return await controller.submit(
            lambda image: decide_alter_reassignments(image, request, controller.policy),
            is_confirmed=True,
        )
    except ApiError as error:
        return AlterPartitionReassignmentsResponse(
            error_code=error.code, error_message=error.message
        )
