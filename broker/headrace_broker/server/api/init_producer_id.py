"""InitProducerId: an id for an idempotent producer.

Versions: 0 · 1 as 0 · 2 flexible · 3 id and epoch of a producer that recovers (KIP-360) ·
4 PRODUCER_FENCED · 5 transactions v2 (KIP-890) · 6 two-phase commit fields (KIP-939).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker
    from headrace_broker.server.context import RequestContext

API_KEY = ApiKey.INIT_PRODUCER_ID


async def handle(
    broker: Broker, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """Give a fresh id with epoch 0: an idempotent producer has no past to be fenced from."""
    if request.transactional_id is not None:
        # Retriable codes would make a client wait for ever for what is not there.
        code = (
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            if request.transactional_id
            else ErrorCode.INVALID_REQUEST
        )
        return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    try:
        producer_id = await broker.producer_ids.next_id()
    except ApiError:
        # No controller to give a block of ids: whatever became of it, asking again is right. The
        # code is the one that Kafka's ProducerIdManager answers with, and clients retry it.
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
