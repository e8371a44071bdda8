"""InitProducerId: an id and epoch for a producer, idempotent or transactional.

Versions: 0 · 1 as 0 · 2 flexible · 3 id and epoch of a producer that recovers (KIP-360) ·
4 PRODUCER_FENCED · 5 transactions v2 (KIP-890). Version 6, with the fields of two-phase commit
(KIP-939), is not advertised, as in Kafka 4.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from headrace_broker.coordinator.transactions.transaction import Identity
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from headrace_broker.protocol.types import ProducerEpoch, ProducerId
from headrace_broker.server.api.services import WithProducerIds, WithTransactions

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.INIT_PRODUCER_ID

_FENCED_FROM: Final = 4


class Node(WithProducerIds, WithTransactions, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """Give an idempotent producer a new id with epoch 0; it has no predecessor to fence."""
    if request.transactional_id is not None:
        return await _transactional(broker, context, request, request.transactional_id)
    if (request.producer_id < 0) != (request.producer_epoch < 0):
        code = ErrorCode.INVALID_REQUEST  # one without the other names nobody
        return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    try:
        producer_id = await broker.producer_ids.next_id()
    except ApiError:
        # No controller gave a block of ids. A retry is always safe here, and clients retry this
        # code, which is the one of Kafka's ProducerIdManager.
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def _transactional(
    broker: Node,
    context: RequestContext,
    request: InitProducerIdRequest,
    transactional_id: str,
) -> InitProducerIdResponse:
    expected = Identity(
        producer_id=ProducerId(request.producer_id), epoch=ProducerEpoch(request.producer_epoch)
    )
    try:
        given = await broker.transactions.init_producer(
            transactional_id, request.transaction_timeout_ms, expected
        )
    except ApiError as error:
        code = error.code
        if code is ErrorCode.PRODUCER_FENCED and context.api_version < _FENCED_FROM:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=given.producer_id, producer_epoch=given.epoch)
