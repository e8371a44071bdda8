"""What a workload is: clients of one kind, started in the seeds that draw it."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    start: "Callable[[Scenario], list[Any]]"
    needs: "Callable[[Profile], bool]" = lambda _profile: True
    settings: "Callable[[random.Random, Profile], dict[str, str]]" = lambda _rng, _profile: {}
    """What the brokers' settings files need for it."""
