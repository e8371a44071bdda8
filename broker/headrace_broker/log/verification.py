"""`Verifications`: which producers may begin a transaction in a partition (KIP-890).

Before the first record of a transaction, the partition's leader asks the coordinator whether the
transaction is open. The result is a `Verification`, which the append checks again: a marker in the
meantime revokes it (KAFKA-14884).
"""

from typing import Final

from headrace_broker.protocol.errors import ApiError, ErrorCode


class Verification:
    """Permission to begin one transaction, known by its identity."""

    __slots__ = ("epoch", "lowest_sequence", "since_ms")

    def __init__(self, epoch: int, lowest_sequence: int, since_ms: int) -> None:
        self.epoch = epoch
        self.lowest_sequence = lowest_sequence
        """The first sequence that was verified: a later one must not overtake it (KAFKA-14920)."""
        self.since_ms = since_ms

    @property
    def is_asked(self) -> bool:
        """Whether a coordinator has to agree first."""
        return self is not TRUSTED and self is not ONGOING


TRUSTED: Final = Verification(-1, -1, -1)
"""For writers that are not verified: they may begin transactions."""
ONGOING: Final = Verification(-1, -1, -1)
"""For a transaction that is already open: it may continue, and none may begin."""


class Verifications:
    """Verifications that are requested or granted but not used yet, by producer id."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked: dict[int, Verification] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def ask(self, producer_id: int, epoch: int, sequence: int, now_ms: int) -> Verification:
        """Return the verification for an append, to be used once the coordinator has agreed.

        Raises INVALID_PRODUCER_EPOCH if a newer epoch has asked.
        """
        known = self._asked.get(producer_id)
        if known is not None and known.epoch == epoch:
            known.lowest_sequence = min(known.lowest_sequence, sequence)
            return known
        if known is not None and known.epoch > epoch:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} has epoch {known.epoch} now",
            )
        made = self._asked[producer_id] = Verification(epoch, sequence, now_ms)
        return made

    def check(
        self, producer_id: int, epoch: int, verification: Verification, sequence: int | None
    ) -> None:
        """Raise ApiError unless the append may begin a transaction.

        `sequence` is None if the producer's state knows the next one.
        """
        if verification is TRUSTED:
            return
        if self._asked.get(producer_id) is not verification or verification.epoch != epoch:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id} has no open transaction in the partition",
            )
        if sequence is not None and sequence > verification.lowest_sequence:
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} sent sequence {sequence}, and "
                f"{verification.lowest_sequence} before it",
            )

    def refuse(self, producer_id: int, verification: Verification) -> None:
        """Forget a question whose identity may not write, so that it blocks no other epoch."""
        if self._asked.get(producer_id) is verification:
            del self._asked[producer_id]

    def end(self, producer_id: int) -> None:
        """The transaction has begun or ended: drop the verification."""
        self._asked.pop(producer_id, None)

    def end_older(self, producer_id: int, epoch: int) -> None:
        """A transaction before `epoch` has ended; keep the verification of a newer one."""
        asked = self._asked.get(producer_id)
        if asked is not None and asked.epoch < epoch:
            del self._asked[producer_id]

    def remove_older(self, than_ms: int) -> None:
        """Drop verifications that were requested before a time and never used."""
        old = [key for key, asked in self._asked.items() if asked.since_ms < than_ms]
        for producer_id in old:
            del self._asked[producer_id]

    def clear(self) -> None:
        """Drop all verifications."""
        self._asked.clear()
