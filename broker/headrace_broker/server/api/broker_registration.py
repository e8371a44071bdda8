"""BrokerRegistration: a broker's process joins the cluster.

Versions: 0 · 1 ZooKeeper migration, which there is none of here · 2 log directories (KIP-858) ·
3 the epoch of the last clean shutdown (KIP-966) · 4 features may have the version 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace_broker.metadata.brokers.registration import Registration, decide_register_broker
from headrace_broker.metadata.entities import Endpoint
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from headrace_broker.protocol.types import BrokerEpoch, NodeId
from headrace_broker.server.api.services import WithClusterId, WithController, WithControllerTasks

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.BROKER_REGISTRATION


class Node(WithClusterId, WithController, WithControllerTasks, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: RequestContext, request: BrokerRegistrationRequest
) -> BrokerRegistrationResponse:
    """Register the process unless another process with this id is alive."""
    del context
    if request.cluster_id != broker.cluster_id:
        return BrokerRegistrationResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
    registration = Registration(
        node_id=NodeId(request.broker_id),
        incarnation_id=request.incarnation_id,
        endpoints=[
            Endpoint(
                name=item.name,
                host=item.host,
                port=item.port,
                security_protocol=item.security_protocol,
            )
            for item in request.listeners
        ],
        rack=request.rack,
        log_dirs=list(request.log_dirs),
        previous_broker_epoch=BrokerEpoch(request.previous_broker_epoch),
    )
    controller, tasks = broker.controller, broker.controller_tasks
    try:
        epoch = await controller.submit(
            lambda image: decide_register_broker(
                image,
                registration,
                controller.policy,
                is_alive=tasks.sessions.was_heard_from(registration.node_id, tasks.now_ms()),
            )
        )
    except ApiError as error:
        return BrokerRegistrationResponse(error_code=error.code)
    return BrokerRegistrationResponse(broker_epoch=epoch)
