"""The state of one partition of `__transaction_state`: its transactional ids.

Only `replay` and `apply` change state that survives a restart. A decision holds its id with
`reserve` until its record is committed (`apply`) or refused (`abandon`). So there is one transition
at a time for each id, and a failed append leaves nothing behind (KAFKA-7519, KAFKA-9666).
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from headrace_broker.coordinator.transactions.config import TransactionConfig
from headrace_broker.coordinator.transactions.records import TransactionRecord
from headrace_broker.coordinator.transactions.transaction import (
    TopicPartition,
    Transaction,
    TransactionVersion,
)
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import PartitionIndex, ProducerId, TimestampMs

ResponseT = TypeVar("ResponseT")


class ProducerIdRequiredError(Exception):
    """The decision needs a new producer id: the caller must draw one, and decide again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDecision(Generic[ResponseT]):
    """Append `record`, if there is one; once it is committed, respond."""

    response: ResponseT
    record: TransactionRecord | None = None
    error: ErrorCode = ErrorCode.NONE
    """Sent instead of the response, after the append."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What a decision may know besides the shard: limits, time, and an id drawn beforehand."""

    config: TransactionConfig
    now_ms: TimestampMs
    version: TransactionVersion
    """The cluster's level of `transaction.version`."""
    fresh_producer_id: ProducerId | None = None
    room_for_an_id: bool = True
    """False when the broker has as many ids as `headrace.max.transactional.ids` allows."""

    def draw_producer_id(self) -> ProducerId:
        """Return the new id; raise ProducerIdRequiredError if there is none."""
        if self.fresh_producer_id is None:
            raise ProducerIdRequiredError
        return self.fresh_producer_id


@dataclass(slots=True, kw_only=True)
class TransactionShard:
    """Transactional ids of one partition; one driver owns it."""

    partition: PartitionIndex
    transactions: dict[str, Transaction] = field(default_factory=dict)
    pending: dict[str, TransactionRecord] = field(default_factory=dict)
    """Ids with a record that is not committed yet."""
    unmarked: dict[str, set[TopicPartition]] = field(default_factory=dict)
    """For decided transactions: the partitions whose marker is not known to be written."""

    def find(self, transactional_id: str) -> Transaction:
        """Return what is known of an id; raise INVALID_PRODUCER_ID_MAPPING."""
        found = self.transactions.get(transactional_id)
        if found is None:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                f"the transactional id {transactional_id!r} is unknown",
            )
        return found

    def check_not_pending(self, transactional_id: str) -> None:
        """Raise CONCURRENT_TRANSACTIONS while a record of the id is pending."""
        if transactional_id in self.pending:
            raise concurrent_transactions()

    # ---- one transition at a time

    def reserve(self, record: TransactionRecord) -> None:
        """Hold the id while its record is pending; a second record is a bug."""
        if record.transactional_id in self.pending:
            raise RuntimeError(f"{record.transactional_id} has a transition already")
        self.pending[record.transactional_id] = record

    def abandon(self, record: TransactionRecord) -> None:
        """Release the id: its record is certainly not in the log."""
        if self.pending.get(record.transactional_id) is record:
            del self.pending[record.transactional_id]

    def apply(self, record: TransactionRecord) -> None:
        """Apply a committed record, and release its id."""
        if self.pending.pop(record.transactional_id, None) is not record:
            raise RuntimeError(f"{record.transactional_id} has no such transition")
        replay(self, record)

    # ---- markers

    def note_marked(self, transactional_id: str, partitions: Collection[TopicPartition]) -> bool:
        """Note partitions whose marker is written; return whether all are: it can then complete."""
        left = self.unmarked.get(transactional_id)
        if left is None:
            return False
        left.difference_update(partitions)
        return not left

    def prepared(self) -> Iterator[Transaction]:
        """Yield the transactions whose outcome is decided but whose markers are not all written."""
        for name in self.unmarked:
            yield self.transactions[name]


def replay(shard: TransactionShard, record: TransactionRecord) -> None:
    """Apply one record that was just committed, or that was read while loading."""
    name, transaction = record.transactional_id, record.transaction
    shard.unmarked.pop(name, None)
    if transaction is None:
        shard.transactions.pop(name, None)
        return
    shard.transactions[name] = transaction
    if transaction.status.is_prepared:
        shard.unmarked[name] = set(transaction.partitions)


def record_of(transaction: Transaction) -> TransactionRecord:
    """Return the record that keeps a state."""
    return TransactionRecord(transactional_id=transaction.transactional_id, transaction=transaction)


def concurrent_transactions() -> ApiError:
    """Return CONCURRENT_TRANSACTIONS, after which a client waits and retries."""
    return ApiError(
        ErrorCode.CONCURRENT_TRANSACTIONS, "another transition of the id is not finished yet"
    )


def check_transactional_id(transactional_id: str | None) -> None:
    """Raise INVALID_REQUEST for an empty id."""
    if not transactional_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")


def fenced(transaction: Transaction) -> ApiError:
    """Return PRODUCER_FENCED: another producer has the id now."""
    return ApiError(
        ErrorCode.PRODUCER_FENCED,
        f"producer {transaction.producer_id} has epoch {transaction.epoch} now",
    )


def wrong_producer(transaction: Transaction) -> ApiError:
    """Return INVALID_PRODUCER_ID_MAPPING: the id belongs to another producer."""
    return ApiError(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        f"{transaction.transactional_id!r} belongs to producer {transaction.producer_id}",
    )
