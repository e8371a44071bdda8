"""`Verifications`: which producers may begin a transaction in a partition (KIP-890).

Before the first record of a transaction the partition's leader asks the coordinator whether the
transaction is open. What it may do then is a `Verification`, looked at again at the moment of the
append: a marker that came in between has taken it back (KAFKA-14884).
"""

from typing import Final

from headrace_broker.protocol.errors import ApiError, ErrorCode


class Verification:
    """Leave to begin one transaction, known by its identity."""

    __slots__ = ("epoch", "lowest_sequence", "since_ms")

    def __init__(self, epoch: int, lowest_sequence: int, since_ms: int) -> None:
        self.epoch = epoch
        self.lowest_sequence = lowest_sequence
        """The first that was asked for: a later one must not overtake it (KAFKA-14920)."""
        self.since_ms = since_ms

    @property
    def is_asked(self) -> bool:
        """Whether a coordinator has to agree first."""
        return self is not TRUSTED and self is not ONGOING


TRUSTED: Final = Verification(-1, -1, -1)
"""Of writers that are not verified: they may begin transactions."""
ONGOING: Final = Verification(-1, -1, -1)
"""Of a transaction that is open already: it may go on, and none may begin."""


class Verifications:
    """What is asked or answered and not used yet, by producer id."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked: dict[int, Verification] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def ask(self, producer_id: int, epoch: int, sequence: int, now_ms: int) -> Verification:
        """Return what an append is to come with once the coordinator has agreed.

        Raises INVALID_PRODUCER_EPOCH where a newer epoch has asked.
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

        `sequence` is None where the producer's state tells the one that is due.
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

    def end(self, producer_id: int) -> None:
        """The transaction has begun, or has ended: nothing more can begin by what was asked."""
        self._asked.pop(producer_id, None)

    def end_older(self, producer_id: int, epoch: int) -> None:
        """A transaction before `epoch` has ended; the one of this epoch may have asked already."""
        asked = self._asked.get(producer_id)
        if asked is not None and asked.epoch < epoch:
            del self._asked[producer_id]

    def remove_older(self, than_ms: int) -> None:
        """Forget what was asked before a time and never used."""
        old = [key for key, asked in self._asked.items() if asked.since_ms < than_ms]
        for producer_id in old:
            del self._asked[producer_id]

    def clear(self) -> None:
        """Forget everything."""
        self._asked.clear()
