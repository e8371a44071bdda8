"""AllocateProducerIds: a broker gets a block of producer ids that nobody else gets (KIP-730).

Versions: 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_broker.metadata.brokers.liveness import registered_broker
from headrace_broker.metadata.brokers.registration import decide_allocate_producer_ids
from headrace_broker.metadata.decision import MetadataDecision
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from headrace_broker.protocol.types import BrokerEpoch, NodeId, ProducerId

if TYPE_CHECKING:
    from headrace_broker.server.api.services import WithController
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.ALLOCATE_PRODUCER_IDS


async def handle(
    broker: WithController, context: RequestContext, request: AllocateProducerIdsRequest
) -> AllocateProducerIdsResponse:
    """Allocate the next block to a registered broker."""
    del context
    node_id, epoch = NodeId(request.broker_id), BrokerEpoch(request.broker_epoch)

    def decide(image: MetadataImage) -> MetadataDecision[tuple[ProducerId, int]]:
        registered_broker(image, node_id, epoch)
        return decide_allocate_producer_ids(image, node_id)

    try:
        start, length = await broker.controller.submit(decide)
    except ApiError as error:
        return AllocateProducerIdsResponse(error_code=error.code)
    return AllocateProducerIdsResponse(producer_id_start=start, producer_id_len=length)
