"""The states of a transactional id, and the one table of legal moves between them.

    Empty ──add──▶ Ongoing ──commit──▶ PrepareCommit ──all markers──▶ CompleteCommit
      │               │ ──abort──▶ PrepareAbort ──all markers──▶ CompleteAbort
      │               └──timeout, new producer──▶ PrepareEpochFence ──▶ PrepareAbort
      └──abort of nothing (transaction version 2)──▶ PrepareAbort

Complete* continue like Empty. PrepareEpochFence is never written: it says that the abort that
follows fences the producer. Codes and names are Kafka's (TransactionState).
"""

from enum import IntEnum
from typing import Final


class TransactionStatus(IntEnum):
    """States with the codes of their records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """The name in DescribeTransactions and ListTransactions."""
        return self.name.title().replace("_", "")

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided, and markers are being written."""
        return self in _PREPARED

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open: a new one may begin, and the id may expire."""
        return self in _IDLE


_PREPARED: Final = frozenset({TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT})
_IDLE: Final = frozenset(
    {
        TransactionStatus.EMPTY,
        TransactionStatus.COMPLETE_COMMIT,
        TransactionStatus.COMPLETE_ABORT,
    }
)
_FROM_IDLE: Final = frozenset(
    {
        TransactionStatus.EMPTY,
        TransactionStatus.ONGOING,
        TransactionStatus.PREPARE_ABORT,
        TransactionStatus.DEAD,
    }
)


class IllegalTransitionError(Exception):
    """A transactional id was moved along an edge that the table does not have: a bug."""


TRANSITIONS: Final[dict[TransactionStatus, frozenset[TransactionStatus]]] = {
    TransactionStatus.EMPTY: _FROM_IDLE,
    TransactionStatus.ONGOING: frozenset(
        {
            TransactionStatus.ONGOING,
            TransactionStatus.PREPARE_COMMIT,
            TransactionStatus.PREPARE_ABORT,
            TransactionStatus.PREPARE_EPOCH_FENCE,
        }
    ),
    TransactionStatus.PREPARE_COMMIT: frozenset({TransactionStatus.COMPLETE_COMMIT}),
    TransactionStatus.PREPARE_ABORT: frozenset({TransactionStatus.COMPLETE_ABORT}),
    TransactionStatus.COMPLETE_COMMIT: _FROM_IDLE,
    TransactionStatus.COMPLETE_ABORT: _FROM_IDLE,
    TransactionStatus.DEAD: frozenset(),
    TransactionStatus.PREPARE_EPOCH_FENCE: frozenset({TransactionStatus.PREPARE_ABORT}),
}


def check_transition(before: TransactionStatus, after: TransactionStatus) -> None:
    """Raise unless the table has the edge."""
    if after not in TRANSITIONS[before]:
        raise IllegalTransitionError(
            f"a transaction cannot go from {before.label} to {after.label}"
        )
