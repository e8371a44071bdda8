"""The states of a consumer group and of its members, and the tables of legal moves (KIP-848).

A group's state follows from its records:

    Empty       it has no members
    Assigning   its epoch is ahead of its target's: the target must be computed
    Reconciling the target is current, and some member is not there yet
    Stable      every member has reached the target
    Dead        it is gone, or became a classic group

A member's state says what its next heartbeat waits for: to give partitions up
(UnrevokedPartitions), or for others to give them up (UnreleasedPartitions).
"""

from enum import Enum, IntEnum
from typing import Final


class ConsumerGroupState(Enum):
    """States with the names in ListGroups and ConsumerGroupDescribe."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class MemberState(IntEnum):
    """States with the numbers in the record of a member's current assignment."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127
    """From a later version: the member is fenced, which is safe."""


_LIVE: Final = frozenset(
    {
        ConsumerGroupState.ASSIGNING,
        ConsumerGroupState.RECONCILING,
        ConsumerGroupState.STABLE,
        ConsumerGroupState.EMPTY,
    }
)

# One heartbeat can bump the epoch, compute the target and reconcile its member. A decision may pass
# through several states; only the last one counts.
GROUP_TRANSITIONS: Final[dict[ConsumerGroupState, frozenset[ConsumerGroupState]]] = {
    ConsumerGroupState.EMPTY: frozenset(
        {
            ConsumerGroupState.RECONCILING,  # its first member was a classic group's
            ConsumerGroupState.STABLE,
            ConsumerGroupState.DEAD,
        }
    ),
    ConsumerGroupState.ASSIGNING: _LIVE | {ConsumerGroupState.DEAD},
    ConsumerGroupState.RECONCILING: _LIVE | {ConsumerGroupState.DEAD},
    ConsumerGroupState.STABLE: _LIVE | {ConsumerGroupState.DEAD},
    ConsumerGroupState.DEAD: frozenset(),
}

MEMBER_TRANSITIONS: Final[dict[MemberState, frozenset[MemberState]]] = {
    MemberState.STABLE: frozenset(
        {MemberState.UNREVOKED_PARTITIONS, MemberState.UNRELEASED_PARTITIONS}
    ),
    MemberState.UNREVOKED_PARTITIONS: frozenset(
        {MemberState.STABLE, MemberState.UNRELEASED_PARTITIONS}
    ),
    MemberState.UNRELEASED_PARTITIONS: frozenset(
        {MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS}
    ),
    MemberState.UNKNOWN: frozenset({MemberState.STABLE, MemberState.UNRELEASED_PARTITIONS}),
}
