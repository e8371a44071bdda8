"""AssignReplicasToDirs: a broker says which log directory holds which replica (KIP-858).

Versions: 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_broker.metadata.directories import decide_assign_replicas_to_dirs
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)

if TYPE_CHECKING:
    from headrace_broker.server.api.services import WithController
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.ASSIGN_REPLICAS_TO_DIRS


async def handle(
    broker: WithController, context: RequestContext, request: AssignReplicasToDirsRequest
) -> AssignReplicasToDirsResponse:
    """Note the directories; each replica has its own outcome."""
    del context
    controller = broker.controller
    try:
        return await controller.submit(
            lambda image: decide_assign_replicas_to_dirs(image, request, controller.policy)
        )
    except ApiError as error:
        return AssignReplicasToDirsResponse(error_code=error.code)
