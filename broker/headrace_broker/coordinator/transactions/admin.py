"""DescribeTransactions and ListTransactions, for administrators (KIP-664, KIP-994)."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from headrace_broker.coordinator.transactions.shard import TransactionShard, check_transactional_id
from headrace_broker.coordinator.transactions.states import TransactionStatus
from headrace_broker.coordinator.transactions.transaction import Transaction
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.describe_transactions import TopicData
from headrace_broker.protocol.messages.describe_transactions import (
    TransactionState as DescribedTransaction,
)
from headrace_broker.protocol.messages.list_transactions import (
    TransactionState as ListedTransaction,
)
from headrace_broker.protocol.types import TimestampMs

STATUS_BY_LABEL: Final = {status.label: status for status in TransactionStatus}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionFilter:
    """The filters of ListTransactions; an empty set passes everything."""

    statuses: frozenset[TransactionStatus] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    duration_ms: int = -1
    """Only transactions that began longer ago than this; negative: all."""
    matches: Callable[[str], bool] = lambda _name: True

    def passes(self, transaction: Transaction, now_ms: TimestampMs) -> bool:
        """Whether a transaction passes the filters."""
        if self.statuses and transaction.status not in self.statuses:
            return False
        if self.producer_ids and transaction.producer_id not in self.producer_ids:
            return False
        # As in Kafka an id without a transaction, whose start is -1, passes: ask for states, too.
        if self.duration_ms >= 0 and now_ms - transaction.start_ms <= self.duration_ms:
            return False
        return self.matches(transaction.transactional_id)


def list_transactions(
    shard: TransactionShard, wanted: TransactionFilter, now_ms: TimestampMs
) -> list[ListedTransaction]:
    """Return the shard's transactional ids that pass the filter."""
    return [
        ListedTransaction(
            transactional_id=found.transactional_id,
            producer_id=found.producer_id,
            transaction_state=found.status.label,
        )
        for found in shard.transactions.values()
        if wanted.passes(found, now_ms)
    ]


def describe_transaction(shard: TransactionShard, transactional_id: str) -> DescribedTransaction:
    """Describe one transactional id; raise TRANSACTIONAL_ID_NOT_FOUND."""
    check_transactional_id(transactional_id)
    found = shard.transactions.get(transactional_id)
    if found is None:
        raise ApiError(
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
            f"the transactional id {transactional_id!r} is unknown",
        )
    # A decided transaction keeps its partitions until their markers are written.
    partitions = shard.unmarked.get(transactional_id, found.partitions)
    return DescribedTransaction(
        transactional_id=transactional_id,
        transaction_state=found.status.label,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.start_ms,
        producer_id=found.producer_id,
        producer_epoch=found.epoch,
        topics=[
            TopicData(topic=topic, partitions=[index for _, index in group])
            for topic, group in groupby(sorted(partitions), key=lambda item: item[0])
        ],
    )
