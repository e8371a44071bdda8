"""AddOffsetsToTxn: let a transaction commit the offsets of a group.

Versions: 0 · 1 as 0 · 2 PRODUCER_FENCED · 3 flexible · 4 TRANSACTION_ABORTABLE (KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from headrace_broker.coordinator.transactions.transaction import Identity, TransactionVersion
from headrace_broker.metadata.entities import GROUP_METADATA_TOPIC
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from headrace_broker.protocol.types import ProducerEpoch, ProducerId
from headrace_broker.server.api.services import WithGroups, WithTransactions

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.ADD_OFFSETS_TO_TXN

_FENCED_FROM: Final = 2


class Node(WithGroups, WithTransactions, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Add the partition of `__consumer_offsets` that holds the group."""
    identity = Identity(
        producer_id=ProducerId(request.producer_id), epoch=ProducerEpoch(request.producer_epoch)
    )
    where = (GROUP_METADATA_TOPIC, broker.groups.partition_for(request.group_id))
    try:
        await broker.transactions.add(
            request.transactional_id, identity, [where], TransactionVersion.TV_0
        )
    except ApiError as error:
        code = error.code
        if code is ErrorCode.PRODUCER_FENCED and context.api_version < _FENCED_FROM:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return AddOffsetsToTxnResponse(error_code=code)
    return AddOffsetsToTxnResponse()
