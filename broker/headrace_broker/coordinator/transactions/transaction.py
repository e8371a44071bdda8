"""`Transaction`: the state of one transactional id, as a value, and the moves to the next state.

Owns how each move changes producer ids and epochs (Kafka's TransactionMetadata.prepare…); the
request handlers decide which move to make. A client gets at most epoch 32766, so that the next
epoch can always fence it; after that the producer id changes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from headrace_broker.coordinator.transactions.states import TransactionStatus, check_transition
from headrace_broker.protocol.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
)

EPOCH_MAX: Final = 32767
LAST_EPOCH: Final = EPOCH_MAX - 1
"""The last epoch that a client gets; the one above only fences."""
NO_TIMEOUT_MS: Final = (1 << 31) - 1
"""A two-phase commit's transaction waits for its participants (KIP-939)."""

TopicPartition = tuple[str, int]


class TransactionVersion(IntEnum):
    """Levels of the feature `transaction.version`."""

    TV_0 = 0
    TV_1 = 1
    """Flexible records."""
    TV_2 = 2
    """The epoch moves with every transaction (KIP-890)."""

    @property
    def bumps_epochs(self) -> bool:
        """Whether the end of a transaction bumps the producer's epoch."""
        return self >= TransactionVersion.TV_2


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A producer id with its epoch."""

    producer_id: ProducerId = NO_PRODUCER_ID
    epoch: ProducerEpoch = NO_PRODUCER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One transactional id; all but `last_epoch` is in its record."""

    transactional_id: str
    producer_id: ProducerId
    epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    previous_producer_id: ProducerId = NO_PRODUCER_ID
    """The id before the latest move; it differs only if that move changed the id."""
    next_producer_id: ProducerId = NO_PRODUCER_ID
    """The producer's next id when this one's epochs are used up."""
    last_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    """The client's epoch before the latest bump; a retry names it. Not written, as in Kafka."""
    timeout_ms: int
    status: TransactionStatus = TransactionStatus.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: TimestampMs = NO_TIMESTAMP
    updated_ms: TimestampMs
    client_version: TransactionVersion = TransactionVersion.TV_0

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no epoch left for a client."""
        return is_exhausted(self.epoch)

    @property
    def identity(self) -> Identity:
        """The identity that the client writes with."""
        return Identity(producer_id=self.producer_id, epoch=self.epoch)

    def is_timed_out(self, now_ms: TimestampMs) -> bool:
        """Whether an open transaction has exceeded its timeout."""
        return (
            self.status is TransactionStatus.ONGOING
            and self.timeout_ms != NO_TIMEOUT_MS
            and self.start_ms + self.timeout_ms <= now_ms
        )

    # ---- moves: each returns the next state

    def bump(
        self, timeout_ms: int, now_ms: TimestampMs, *, keeps_last_epoch: bool
    ) -> "Transaction":
        """Start again with the next epoch, which fences a producer with the present one."""
        return self._restart(
            timeout_ms,
            now_ms,
            Identity(producer_id=self.producer_id, epoch=ProducerEpoch(self.epoch + 1)),
            self.epoch if keeps_last_epoch else NO_PRODUCER_EPOCH,
        )

    def rotate(
        self,
        producer_id: ProducerId,
        timeout_ms: int,
        now_ms: TimestampMs,
        *,
        keeps_last_epoch: bool,
    ) -> "Transaction":
        """Start again with another producer id."""
        return self._restart(
            timeout_ms,
            now_ms,
            Identity(producer_id=producer_id, epoch=ProducerEpoch(0)),
            self.epoch if keeps_last_epoch else NO_PRODUCER_EPOCH,
        )

    def restart(self, timeout_ms: int, now_ms: TimestampMs) -> "Transaction":
        """Start again as the same producer: a retry of a completed request."""
        return self._restart(timeout_ms, now_ms, self.identity, self.last_epoch)

    def _restart(
        self,
        timeout_ms: int,
        now_ms: TimestampMs,
        identity: Identity,
        last_epoch: ProducerEpoch,
    ) -> "Transaction":
        return self._move(
            TransactionStatus.EMPTY,
            replace(
                self,
                producer_id=identity.producer_id,
                epoch=identity.epoch,
                last_epoch=last_epoch,
                timeout_ms=timeout_ms,
                partitions=frozenset(),
                start_ms=NO_TIMESTAMP,
                updated_ms=now_ms,
            ),
        )

    def add(
        self,
        partitions: Iterable[TopicPartition],
        now_ms: TimestampMs,
        client_version: TransactionVersion,
    ) -> "Transaction":
        """Add partitions to the transaction; the first ones begin it."""
        return self._move(
            TransactionStatus.ONGOING,
            replace(
                self,
                partitions=self.partitions.union(partitions),
                start_ms=now_ms if self.status.is_idle else self.start_ms,
                updated_ms=now_ms,
                client_version=client_version,
            ),
        )

    def prepare(
        self,
        now_ms: TimestampMs,
        client_version: TransactionVersion,
        *,
        commits: bool,
        next_producer_id: ProducerId = NO_PRODUCER_ID,
    ) -> "Transaction":
        """Decide the outcome; with version 2 the epoch moves, and the markers carry the new one."""
        bumps = client_version.bumps_epochs
        return self._move(
            TransactionStatus.PREPARE_COMMIT if commits else TransactionStatus.PREPARE_ABORT,
            replace(
                self,
                epoch=ProducerEpoch(self.epoch + 1) if bumps else self.epoch,
                last_epoch=self.epoch if bumps else self.last_epoch,
                next_producer_id=next_producer_id,
                # An abort of nothing has no start time, but its record needs one.
                start_ms=now_ms if self.status.is_idle else self.start_ms,
                updated_ms=now_ms,
                client_version=client_version,
            ),
        )

    def fence(
        self,
        now_ms: TimestampMs,
        version: TransactionVersion,
        next_producer_id: ProducerId = NO_PRODUCER_ID,
    ) -> "Transaction":
        """Abort on behalf of the producer, with an epoch that fences it: exactly one bump."""
        fencing = self._move(
            TransactionStatus.PREPARE_EPOCH_FENCE,
            self
            if version.bumps_epochs
            else replace(self, epoch=ProducerEpoch(self.epoch + 1), last_epoch=NO_PRODUCER_EPOCH),
        )
        return fencing.prepare(now_ms, version, commits=False, next_producer_id=next_producer_id)

    def complete(self, now_ms: TimestampMs) -> "Transaction":
        """All markers are written."""
        rotates = self.client_version.bumps_epochs and self.next_producer_id != NO_PRODUCER_ID
        return self._move(
            TransactionStatus.COMPLETE_COMMIT
            if self.status is TransactionStatus.PREPARE_COMMIT
            else TransactionStatus.COMPLETE_ABORT,
            replace(
                self,
                producer_id=self.next_producer_id if rotates else self.producer_id,
                epoch=ProducerEpoch(0) if rotates else self.epoch,
                next_producer_id=NO_PRODUCER_ID,
                partitions=frozenset(),
                updated_ms=now_ms,
            ),
        )

    def _move(self, status: TransactionStatus, changed: "Transaction") -> "Transaction":
        check_transition(self.status, status)
        return replace(changed, status=status, previous_producer_id=self.producer_id)


def is_exhausted(epoch: int) -> bool:
    """Whether an epoch is the last that a client may have, or above."""
    return epoch >= LAST_EPOCH
