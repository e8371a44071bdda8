"""UnregisterBroker: a broker that is gone for good no longer belongs to the cluster.

Versions: 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_broker.metadata.brokers.registration import decide_unregister_broker
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from headrace_broker.protocol.types import NodeId

if TYPE_CHECKING:
    from headrace_broker.server.api.services import WithController
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.UNREGISTER_BROKER
FORWARDED = True


async def handle(
    broker: WithController, context: RequestContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    """Remove the registration."""
    del context
    controller = broker.controller
    node_id = NodeId(request.broker_id)
    try:
        await controller.submit(
            lambda image: decide_unregister_broker(image, node_id, controller.policy)
        )
    except ApiError as error:
        return UnregisterBrokerResponse(error_code=error.code, error_message=error.message)
    return UnregisterBrokerResponse(error_message=None)
