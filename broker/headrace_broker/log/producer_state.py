"""`ProducerStates`: what a partition remembers of its idempotent and transactional producers.

Owns the rules of KIP-98 as Kafka 4.2's ProducerAppendInfo has them: the last five batches of each
producer (a retry of any of them is answered with its first offset), sequences, epochs, and
ongoing transactions with the first unstable offset. State changes in place only after the write.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headrace_broker.log.batches import (
    SEQUENCE_MAX,
    Header,
    last_sequence,
)
from headrace_broker.log.segments.transaction_index import AbortedTransaction
from headrace_broker.log.verification import Verification, Verifications
from headrace_broker.protocol.batch_header import TRANSACTIONAL_FLAG
from headrace_broker.protocol.errors import ApiError, ErrorCode

RETAINED_BATCHES: Final = 5
"""The limit of a producer's requests in flight (`max.in.flight.requests.per.connection`)."""
RETRIED_MS_MAX: Final = 10 * 60_000
"""How long clients retry: Java 2 minutes, librdkafka 5 (`delivery.timeout.ms`)."""
NO_SEQUENCE: Final = -1
NO_OFFSET: Final = -1
NO_EPOCH: Final = -1


class BatchMetadata(NamedTuple):
    """One remembered batch."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        """The offset that a duplicate is answered with."""
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        """The first record's sequence, also after a wrap."""
        first = self.last_sequence - self.offset_delta
        return first if first >= 0 else first + SEQUENCE_MAX + 1


@dataclass(slots=True)
class ProducerState:
    """One producer id's state in one partition."""

    epoch: int
    batches: list[BatchMetadata] = field(default_factory=list)
    coordinator_epoch: int = -1
    txn_first_offset: int = NO_OFFSET
    last_timestamp: int = -1

    @property
    def last_sequence(self) -> int:
        """The sequence of the newest record, or -1 when the epoch has none."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """The offset of the newest record, or -1 when the epoch has none."""
        return self.batches[-1].last_offset if self.batches else NO_OFFSET


class CompletedTransaction(NamedTuple):
    """A transaction whose marker has been appended."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class ProducerStates:
    """All producers of a partition, by id."""

    __slots__ = (
        "_silent",
        "_states",
        "begin_with_first",
        "ongoing",
        "unreplicated",
        "verifications",
    )

    def __init__(self) -> None:
        self._states: dict[int, ProducerState] = {}
        self.ongoing: dict[int, int] = {}
        """Producer id to the first offset of its ongoing transaction."""
        self.unreplicated: list[CompletedTransaction] = []
        """Transactions ended by a marker that is not known to be below the high watermark."""
        self._silent: dict[int, tuple[int, int]] = {}
        """Producers that look expired: their last offset, and since when they look so."""
        self.verifications = Verifications()
        self.begin_with_first = False
        """Whether an unknown producer may begin with no other sequence than the first, 0."""

    def __len__(self) -> int:
        return len(self._states)

    def items(self) -> list[tuple[int, ProducerState]]:
        """Every (producer id, state)."""
        return list(self._states.items())

    def get(self, producer_id: int) -> ProducerState | None:
        """One producer's state."""
        return self._states.get(producer_id)

    def put(self, producer_id: int, state: ProducerState) -> None:
        """Add a state read from a snapshot."""
        self._states[producer_id] = state
        if state.txn_first_offset >= 0:
            self.ongoing[producer_id] = state.txn_first_offset

    def clear(self) -> None:
        """Forget everything."""
        self._states.clear()
        self._silent.clear()
        self.ongoing.clear()
        self.unreplicated.clear()
        self.verifications.clear()

    # ---- append

    def check(
        self, header: Header, verification: Verification | None = None
    ) -> BatchMetadata | None:
        """Return the batch that this one repeats, or None if it may be appended.

        Every batch with a transactional id comes with a `verification`. Raises
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED, INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER,
        INVALID_TXN_STATE: the batch was certainly not appended.
        """
        is_transactional = header.attributes & TRANSACTIONAL_FLAG
        if is_transactional and verification is None:
            raise _without_id(header)
        state = self._states.get(header.producer_id)
        if state is None:
            # The producer is unknown, perhaps because retention removed all its batches: any
            # sequence fits, unless an earlier batch may have been refused.
            if self.begin_with_first and header.base_sequence > 0:
                raise _out_of_order(header, None)
            if verification is not None and is_transactional:
                self._check_begin(header, verification, header.base_sequence)
            return None
        first, epoch = header.base_sequence, header.producer_epoch
        if epoch != state.epoch:
            _check_new_epoch(header, state)
        else:
            last = state.last_sequence
            if first != last + 1 and not (first == 0 and last == SEQUENCE_MAX):
                wanted = last_sequence(first, header.last_offset_delta)
                for batch in state.batches:
                    if batch.last_sequence == wanted and batch.first_sequence == first:
                        return batch
                raise _out_of_order(header, state)
        if state.txn_first_offset >= 0:
            if not is_transactional or epoch != state.epoch:
                raise _outside_transaction(header, state)
        elif verification is not None and is_transactional:
            begins = first if epoch != state.epoch else None
            self._check_begin(header, verification, begins)
        return None

    def check_coordinated(self, header: Header, verification: Verification) -> None:
        """Check a transactional batch that a coordinator on this broker writes for a producer.

        Such batches have no sequences of their own. Raises as `check`.
        """
        state = self._states.get(header.producer_id)
        if state is not None:
            if header.producer_epoch < state.epoch:
                raise _old_epoch(header, state)
            if state.txn_first_offset >= 0:
                if header.producer_epoch != state.epoch:
                    raise _outside_transaction(header, state)
                return
        self._check_begin(header, verification, None)

    def _check_begin(
        self, header: Header, verification: Verification, sequence: int | None
    ) -> None:
        producer_id, epoch = header.producer_id, header.producer_epoch
        self.verifications.check(producer_id, epoch, verification, sequence)

    def append(self, header: Header, first_offset: int, timestamp: int) -> None:
        """Remember a data batch that now lies at `first_offset`."""
        producer_id = header.producer_id
        state = self._states.get(producer_id)
        if state is None:
            state = self._states[producer_id] = ProducerState(header.producer_epoch)
        elif state.epoch != header.producer_epoch:
            state.epoch = header.producer_epoch
            state.batches.clear()
        delta = header.last_offset_delta
        batches = state.batches
        batches.append(
            BatchMetadata(
                last_sequence(header.base_sequence, delta), first_offset + delta, delta, timestamp
            )
        )
        if len(batches) > RETAINED_BATCHES:
            del batches[0]
        state.last_timestamp = timestamp
        if state.txn_first_offset < 0 and header.is_transactional:
            state.txn_first_offset = first_offset
            self.ongoing[producer_id] = first_offset
            self.verifications.end(producer_id)

    def end_transaction(
        self, header: Header, marker_offset: int, coordinator_epoch: int, *, is_commit: bool
    ) -> CompletedTransaction | None:
        """Apply a transaction marker; return the transaction that it ended, if one was open.

        A verification of the marker's epoch stays: the producer's next transaction may have asked
        for it. If the marker has the transaction's own epoch, its writer ends that verification
        too.
        """
        producer_id = header.producer_id
        self.verifications.end_older(producer_id, header.producer_epoch)
        state = self._states.get(producer_id)
        if state is None:
            state = self._states[producer_id] = ProducerState(header.producer_epoch)
        elif state.epoch != header.producer_epoch:
            state.epoch = header.producer_epoch
            state.batches.clear()
        state.coordinator_epoch = coordinator_epoch
        state.last_timestamp = header.max_timestamp
        first_offset, state.txn_first_offset = state.txn_first_offset, NO_OFFSET
        if first_offset < 0:
            return None
        self.ongoing.pop(producer_id, None)
        completed = CompletedTransaction(producer_id, first_offset, marker_offset, not is_commit)
        self.unreplicated.append(completed)
        return completed

    def check_marker(self, header: Header, coordinator_epoch: int) -> None:
        """Refuse the marker of a fenced producer or of a former coordinator."""
        state = self._states.get(header.producer_id)
        if state is None:
            return
        if header.producer_epoch < state.epoch:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"marker of producer {header.producer_id} has epoch {header.producer_epoch}, "
                f"the partition knows {state.epoch}",
            )
        if coordinator_epoch < state.coordinator_epoch:
            raise ApiError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {coordinator_epoch} is older than {state.coordinator_epoch}",
            )

    def is_marked(self, producer_id: int, epoch: int, coordinator_epoch: int) -> bool:
        """Whether the marker of a transaction that bumped its epoch is in the log already.

        Such a marker has the epoch after the transaction's (KIP-890, KIP-1228), so the same epoch
        with no open transaction is a repetition. Raises INVALID_PRODUCER_EPOCH if it would end the
        producer's next transaction, and TRANSACTION_COORDINATOR_FENCED.
        """
        state = self._states.get(producer_id)
        if state is None or epoch > state.epoch:
            return False
        if coordinator_epoch < state.coordinator_epoch:
            raise ApiError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {coordinator_epoch} is older than {state.coordinator_epoch}",
            )
        if epoch < state.epoch or state.txn_first_offset >= 0:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"a marker of epoch {epoch} must not end what producer {producer_id} wrote with "
                f"epoch {state.epoch}",
            )
        return True

    # ---- transactions

    def aborted_entry(self, completed: CompletedTransaction) -> AbortedTransaction:
        """Return the `.txnindex` entry of an aborted transaction."""
        stable = min(self.ongoing.values(), default=completed.last_offset + 1)
        return AbortedTransaction(
            completed.producer_id, completed.first_offset, completed.last_offset, stable
        )

    def first_unstable_offset(self) -> int | None:
        """First offset of a transaction that is open, or ended above the high watermark."""
        if not self.ongoing and not self.unreplicated:
            return None
        starts = [*self.ongoing.values(), *(done.first_offset for done in self.unreplicated)]
        return min(starts)

    @property
    def has_markers(self) -> bool:
        """Whether any producer has ended a transaction here."""
        return any(state.coordinator_epoch >= 0 for state in self._states.values())

    @property
    def has_unstable(self) -> bool:
        """Whether the last stable offset may be below the high watermark."""
        return bool(self.ongoing or self.unreplicated)

    def note_high_watermark(self, high_watermark: int) -> None:
        """Drop the transactions whose marker is now below the high watermark."""
        if self.unreplicated:
            self.unreplicated = [
                done for done in self.unreplicated if done.last_offset >= high_watermark
            ]

    # ---- age

    def remove_expired(self, now_ms: int, elapsed_ms: int, expiration_ms: int) -> int:
        """Remove producers that were silent for `producer.id.expiration.ms`; return their number.

        A producer with an open transaction is kept, however old. If the wall clock jumps ahead, all
        producers look silent at once while their retries are in flight; so does one that writes old
        timestamps. They are removed once they have written nothing for as long as clients retry,
        measured by `elapsed_ms`, a clock that never jumps.
        """
        self.verifications.remove_older(now_ms - expiration_ms)
        grace_ms = min(expiration_ms, RETRIED_MS_MAX)
        before, self._silent = self._silent, {}
        expired = []
        for producer_id, state in self._states.items():
            if state.txn_first_offset >= 0 or now_ms - state.last_timestamp < expiration_ms:
                continue
            last_offset, since_ms = before.get(producer_id, (NO_OFFSET, elapsed_ms))
            if last_offset != state.last_offset:
                since_ms = elapsed_ms
            if elapsed_ms - since_ms >= grace_ms:
                expired.append(producer_id)
            else:
                self._silent[producer_id] = (state.last_offset, since_ms)
        for producer_id in expired:
            del self._states[producer_id]
        return len(expired)


def _check_new_epoch(header: Header, state: ProducerState) -> None:
    if header.producer_epoch < state.epoch:
        raise _old_epoch(header, state)
    if header.base_sequence != 0 and state.epoch != NO_EPOCH:
        raise _out_of_order(header, state)


def _old_epoch(header: Header, state: ProducerState) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {header.producer_id} has epoch {header.producer_epoch}, the partition "
        f"knows {state.epoch}",
    )


def _outside_transaction(header: Header, state: ProducerState) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_TXN_STATE,
        f"producer {header.producer_id} wrote outside its transaction, which began at "
        f"offset {state.txn_first_offset} with epoch {state.epoch}",
    )


def _without_id(header: Header) -> ApiError:
    return ApiError(
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        f"producer {header.producer_id} wrote a transactional batch without a transactional id",
    )


def _out_of_order(header: Header, state: ProducerState | None) -> ApiError:
    before = f"{state.last_sequence} (epoch {state.epoch})" if state else "none that is known"
    return ApiError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} (epoch {header.producer_epoch}) sent sequence "
        f"{header.base_sequence} after {before}",
    )
