"""The states of a classic group, and the one table of legal moves between them.

    Empty ──join──▶ PreparingRebalance ──all joined──▶ CompletingRebalance ──leader syncs──▶ Stable
      ▲                 │        ▲                            │                               │
      └──nobody left────┘        └──join, leave, timeout──────┴───────────────────────────────┘

Every state may also move to Dead, from which nothing returns.
"""

from enum import Enum


class GroupState(Enum):
    """States with the names in ListGroups and DescribeGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class IllegalTransitionError(Exception):
    """A group was moved along an edge that the table does not have: a bug, never bad input."""


TRANSITIONS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset(
        {GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD}
    ),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}


def check_transition(before: GroupState, after: GroupState) -> None:
    """Raise unless the table has the edge."""
    if after not in TRANSITIONS[before]:
        raise IllegalTransitionError(f"a group cannot go from {before.value} to {after.value}")
