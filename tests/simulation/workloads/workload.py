"""What a workload is: clients of one kind, started in the seeds that draw it."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

# Seeds whose faults and workloads are aimed at what chance seldom comes to. What is known of the
# seeds between these ranges was found before.
AIMED_SINCE, _AIMED_END, _AIMED_AGAIN = 800_000, 1_000_000, 3_000_000
POWER_CUTS_SINCE = 8_000_000
"""The first seed with cuts of power that are aimed (`simulation.power_cuts`)."""
STRANGERS_SINCE = 9_000_000
"""The first seed with strangers, slow tosses, old transactional ids and more flipped bits."""
COMMITTERS_SINCE = 10_000_000
"""The first seed in which a former member commits in a transaction, and the power fails where a
segment begins behind what no fsync covers."""
REPEATERS_SINCE = 11_000_000
"""The first seed in which a producer repeats the end of its former transaction, a group's offset is
committed beside a transaction's, and the power fails while a compacted segment is put in place."""
FORGETTING_SINCE = 13_000_000
"""The first seed in which committed offsets and groups are deleted, also amid a transaction."""
COMPLETE_SINCE = FORGETTING_SINCE
"""From here on a seed may draw all that there is; what is known of those before stays true."""


def first_of_range(asked: int, *, with_former: bool = False) -> int:
    """Return the first seed of a range: one that may draw all that there is.

    A small number is counted from there. `with_former` takes it as it is.
    """
    return asked if with_former or asked >= COMPLETE_SINCE else COMPLETE_SINCE + asked


def is_aimed(seed: int) -> bool:
    """Whether a seed has aimed faults and workloads."""
    return AIMED_SINCE <= seed < _AIMED_END or seed >= _AIMED_AGAIN


if TYPE_CHECKING:
    from simulation.profile import Profile
    from simulation.scenario import Scenario


@dataclass(frozen=True, kw_only=True)
class Workload:
    """`start` returns the tasks of its clients; a run is over when all of them are."""

    name: str
    share: float
    """Of the seeds; 1 for those without which nothing happens."""
    since: int = 0
    """The first seed that may draw it: what is known of those before it was there stays true."""
    has_seed: "Callable[[int], bool]" = lambda _seed: True
    """Whether a seed may draw it, where not all from `since` on may."""
    start: "Callable[[Scenario], list[Any]]"
    needs: "Callable[[Profile], bool]" = lambda _profile: True
    settings: "Callable[[random.Random, Profile], dict[str, str]]" = lambda _rng, _profile: {}
    """What the brokers' settings files need for it."""
