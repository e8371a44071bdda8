"""The limits and times of the transaction coordinator, under Kafka's names and defaults."""

from dataclasses import dataclass
from typing import Final

_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 24 * 60 * _MINUTE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Settings of one broker's coordinator; each comment gives the property's name."""

    timeout_ms_max: int = 15 * _MINUTE_MS  # transaction.max.timeout.ms
    id_expiration_ms: int = 7 * _DAY_MS  # transactional.id.expiration.ms
    abort_check_interval_ms: int = 10_000
    # transaction.abort.timed.out.transaction.cleanup.interval.ms
    expiry_check_interval_ms: int = 60 * _MINUTE_MS
    # transaction.remove.expired.transaction.cleanup.interval.ms
    state_topic_partitions: int = 50  # transaction.state.log.num.partitions
    ids_max: int = 100_000  # headrace.max.transactional.ids; unlimited in Kafka
    retry_backoff_ms: int = 20  # add.partitions.to.txn.retry.backoff.ms
    retry_backoff_max_ms: int = 100  # add.partitions.to.txn.retry.backoff.max.ms
    commit_timeout_ms: int = 5_000  # offsets.commit.timeout.ms; Kafka has its request.timeout.ms
