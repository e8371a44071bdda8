"""AlterPartition: a leader changes its in-sync replicas.

Versions: 2 topics by id (KIP-841) · 3 each replica with its broker epoch (KIP-903).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_broker.metadata.alter_partition import decide_alter_partition
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
)

if TYPE_CHECKING:
    from headrace_broker.server.api.services import WithController
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.ALTER_PARTITION


async def handle(
    broker: WithController, context: RequestContext, request: AlterPartitionRequest
) -> AlterPartitionResponse:
    """Change in-sync replicas; each partition has its own outcome."""
    del context
    controller = broker.controller
    try:
        return await controller.submit(
            lambda image: decide_alter_partition(image, request, controller.policy)
        )
    except ApiError as error:
        return AlterPartitionResponse(error_code=error.code)
