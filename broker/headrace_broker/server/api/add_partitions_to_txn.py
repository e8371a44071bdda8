"""AddPartitionsToTxn: let transactions write to partitions, or verify that they do.

Versions: 0 · 1 as 0 · 2 PRODUCER_FENCED · 3 flexible · 4 batches of brokers, verify only
(KIP-890) · 5 TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from headrace_broker.coordinator.transactions.transaction import (
    Identity,
    TopicPartition,
    TransactionVersion,
)
from headrace_broker.metadata.entities import INTERNAL_TOPICS
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from headrace_broker.protocol.types import PartitionIndex, ProducerEpoch, ProducerId
from headrace_broker.server.api.services import WithMetadata, WithTransactions

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.ADD_PARTITIONS_TO_TXN

_FENCED_FROM: Final = 2
_BATCHED_FROM: Final = 4


class Node(WithMetadata, WithTransactions, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Add or verify for each transaction by itself: all of its partitions or none."""
    if context.api_version >= _BATCHED_FROM:
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(
                    transactional_id=each.transactional_id,
                    topic_results=_results(each.topics, await _outcome(broker, each, client=False)),
                )
                for each in request.transactions
            ]
        )
    one = AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    outcome = await _outcome(broker, one, client=True)
    if context.api_version < _FENCED_FROM:
        outcome = {
            where: ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED else code
            for where, code in outcome.items()
        }
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(one.topics, outcome))


async def _outcome(
    broker: Node, asked: AddPartitionsToTxnTransaction, *, client: bool
) -> dict[TopicPartition, ErrorCode]:
    partitions = [(topic.name, index) for topic in asked.topics for index in topic.partitions]
    image = broker.metadata
    # The cluster's own topics are the brokers' to write; a group's offsets have AddOffsetsToTxn.
    refused = {where for where in partitions if client and where[0] in INTERNAL_TOPICS}
    missing = {
        where for where in partitions if image.partition(where[0], PartitionIndex(where[1])) is None
    }
    wrong = dict.fromkeys(missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) | dict.fromkeys(
        refused, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    )
    if wrong and not asked.verify_only:
        return dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED) | wrong
    identity = Identity(
        producer_id=ProducerId(asked.producer_id), epoch=ProducerEpoch(asked.producer_epoch)
    )
    coordinator = broker.transactions
    try:
        if asked.verify_only:
            return coordinator.verify(asked.transactional_id, identity, partitions)
        version = TransactionVersion.TV_0 if client else TransactionVersion.TV_2
        await coordinator.add(asked.transactional_id, identity, partitions, version)
    except ApiError as error:
        return dict.fromkeys(partitions, error.code)
    return dict.fromkeys(partitions, ErrorCode.NONE)


def _results(
    topics: list[AddPartitionsToTxnTopic], outcome: dict[TopicPartition, ErrorCode]
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index, partition_error_code=outcome[topic.name, index]
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]
