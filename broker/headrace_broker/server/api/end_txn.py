"""EndTxn: commit or abort a transaction.

Versions: 0 · 1 as 0 · 2 PRODUCER_FENCED · 3 flexible · 4 TRANSACTION_ABORTABLE · 5 the epoch moves
with every transaction, and the answer says the next identity (KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace_broker.coordinator.transactions.transaction import Identity, TransactionVersion
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from headrace_broker.protocol.types import ProducerEpoch, ProducerId

if TYPE_CHECKING:
    from headrace_broker.server.api.services import WithTransactions
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.END_TXN

_FENCED_FROM: Final = 2
_EPOCH_BUMP_FROM: Final = 5


async def handle(
    broker: WithTransactions, context: RequestContext, request: EndTxnRequest
) -> EndTxnResponse:
    """Answer when the outcome is durable; the markers are written after that."""
    bumps = context.api_version >= _EPOCH_BUMP_FROM
    identity = Identity(
        producer_id=ProducerId(request.producer_id), epoch=ProducerEpoch(request.producer_epoch)
    )
    try:
        following = await broker.transactions.end(
            request.transactional_id,
            identity,
            TransactionVersion.TV_2 if bumps else TransactionVersion.TV_0,
            commits=request.committed,
        )
    except ApiError as error:
        code = error.code
        if code is ErrorCode.PRODUCER_FENCED and context.api_version < _FENCED_FROM:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return EndTxnResponse(error_code=code)
    return EndTxnResponse(producer_id=following.producer_id, producer_epoch=following.epoch)
