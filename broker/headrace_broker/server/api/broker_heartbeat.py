"""BrokerHeartbeat: a broker lives, has read the metadata so far, and wants to serve or to stop.

Versions: 0 · 1 log directories that failed (KIP-858).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace_broker.metadata.brokers.liveness import decide_heartbeat
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from headrace_broker.protocol.types import BrokerEpoch, NodeId, Offset
from headrace_broker.server.api.services import WithController, WithControllerTasks

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.BROKER_HEARTBEAT


class Node(WithController, WithControllerTasks, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: RequestContext, request: BrokerHeartbeatRequest
) -> BrokerHeartbeatResponse:
    """Prolong the session, and tell the broker what to do."""
    del context
    controller, tasks = broker.controller, broker.controller_tasks
    node_id, epoch = NodeId(request.broker_id), BrokerEpoch(request.broker_epoch)
    known = controller.image.brokers.get(node_id)
    if tasks.is_active and known is not None and known.epoch == epoch:
        # Before the queue: a busy controller must not let sessions expire (KAFKA-14996).
        offset = Offset(request.current_metadata_offset)
        tasks.sessions.touch(node_id, epoch, offset, tasks.now_ms())
        if not request.want_shut_down:
            decision = decide_heartbeat(
                controller.image, request, tasks.sessions, controller.policy, tasks.now_ms()
            )
            if not decision.records:
                # Nor does the answer wait for a publication, such as that of a topic with a
                # thousand partitions: the next heartbeat is sent only after this answer.
                return decision.response
    try:
        return await controller.submit(
            lambda image: decide_heartbeat(
                image, request, tasks.sessions, controller.policy, tasks.now_ms()
            )
        )
    except ApiError as error:
        return BrokerHeartbeatResponse(error_code=error.code)
