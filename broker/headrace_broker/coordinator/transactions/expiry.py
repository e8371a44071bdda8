"""Aborts overdue transactions, and removes ids that are no longer used."""

from itertools import islice
from typing import Final

from headrace_broker.coordinator.transactions.init_producer import fence
from headrace_broker.coordinator.transactions.records import TransactionRecord
from headrace_broker.coordinator.transactions.shard import (
    Circumstances,
    TransactionDecision,
    TransactionShard,
    record_of,
)
from headrace_broker.protocol.types import TimestampMs

EXPIRED_AT_ONCE_MAX: Final = 200


def timed_out(shard: TransactionShard, now_ms: TimestampMs) -> list[str]:
    """Return the ids whose open transaction exceeded its timeout."""
    return [
        name
        for name, transaction in shard.transactions.items()
        if transaction.is_timed_out(now_ms) and name not in shard.pending
    ]


def decide_timeout(
    shard: TransactionShard, transactional_id: str, circumstances: Circumstances
) -> TransactionDecision[None] | None:
    """Abort an overdue transaction and fence its producer; None if it is not overdue."""
    found = shard.transactions.get(transactional_id)
    if (
        found is None
        or transactional_id in shard.pending
        or not found.is_timed_out(circumstances.now_ms)
    ):
        return None
    return TransactionDecision(response=None, record=record_of(fence(found, circumstances)))


def decide_expiry(shard: TransactionShard, circumstances: Circumstances) -> list[TransactionRecord]:
    """Return tombstones of ids that were idle for `transactional.id.expiration.ms`.

    An id with an open or undecided transaction never expires, however old. At most
    `EXPIRED_AT_ONCE_MAX` are returned, so that the caller can do other work before the next ones.
    """
    limit_ms = circumstances.now_ms - circumstances.config.id_expiration_ms
    expired = (
        TransactionRecord(transactional_id=name, transaction=None)
        for name, transaction in shard.transactions.items()
        if transaction.status.is_idle
        and transaction.updated_ms <= limit_ms
        and name not in shard.pending
    )
    return list(islice(expired, EXPIRED_AT_ONCE_MAX))
