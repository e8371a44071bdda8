"""The states of a share group's records, and the table of legal moves (KIP-932).

Available     it can be acquired
Acquired      a member has it, under a lock that times out; never persisted
Acknowledged  a member has processed it: it is never delivered again
Archiving     it is not delivered again, and is on its way to the dead-letter topic (KIP-1191)
Archived      it is not delivered again: rejected, delivered too often, or not there at all
"""

from enum import IntEnum
from typing import Final


class RecordState(IntEnum):
    """States with the numbers in `__share_group_state`."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4

    @property
    def is_final(self) -> bool:
        """Whether the record is finished."""
        return not RECORD_TRANSITIONS[self]


class AcknowledgeType(IntEnum):
    """A member's acknowledgement of a record; `RENEW` needs requests of version 2 (KIP-1222)."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


RECORD_TRANSITIONS: Final[dict[RecordState, frozenset[RecordState]]] = {
    RecordState.AVAILABLE: frozenset({RecordState.ACQUIRED, RecordState.ARCHIVED}),
    RecordState.ACQUIRED: frozenset(
        {
            RecordState.AVAILABLE,
            RecordState.ACKNOWLEDGED,
            RecordState.ARCHIVING,
            RecordState.ARCHIVED,
        }
    ),
    RecordState.ARCHIVING: frozenset({RecordState.ARCHIVED}),
    RecordState.ACKNOWLEDGED: frozenset(),
    RecordState.ARCHIVED: frozenset(),
}
