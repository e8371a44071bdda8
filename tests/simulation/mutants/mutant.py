"""How a planted bug is described and installed."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from simulation.profile import Profile, draw_profile
from simulation.scenario import Outcome, simulate

Replace = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """`replace(original)` returns what stands for `owner.name` while the bug is in."""

    name: str
    owner: Any
    attribute: str
    replace: Replace
    also: tuple[tuple[Any, str, Replace], ...] = ()
    """More places of the same bug: owner, attribute, replace."""
    nodes: int = 1
    needs: Callable[[Profile], bool] = lambda _profile: True
    """Which seeds can find it at all; the others are left out, and do not count."""
    since: int = 1
    """Below this no seed can find it: a workload or a setting that it needs is younger."""
    seeds_max: int = 30
    seed_known: int | None = None
    """One that found it once; a change of the broker may move the finding to another."""

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Plant the bug, and take it out again."""
        places = ((self.owner, self.attribute, self.replace), *self.also)
        were = [vars(owner)[name] for owner, name, _ in places]
        try:
            for (owner, name, replace), was in zip(places, were, strict=True):
                setattr(owner, name, replace(was))
            yield
        finally:
            for (owner, name, _), was in zip(places, were, strict=True):
                setattr(owner, name, was)


def rules_with(**defaults: Any) -> Callable[..., Mutant]:
    """Return what makes mutants, with these options where others are not given."""

    def rule(name: str, owner: Any, attribute: str, replace: Replace, **options: Any) -> Mutant:
        return Mutant(
            name=name, owner=owner, attribute=attribute, replace=replace, **defaults | options
        )

    return rule


def find(
    mutant: Mutant, *, first: int | None = None, seeds_max: int | None = None
) -> Outcome | None:
    """Return what the first seed that finds a mutant gave, None where it stays hidden."""
    numbers = itertools.count(max(mutant.since, 1 if first is None else first))
    fitting = (seed for seed in numbers if mutant.needs(draw_profile(seed, mutant.nodes)))
    seeds = itertools.islice(fitting, seeds_max or mutant.seeds_max)
    if first is None and mutant.seed_known is not None:
        seeds = itertools.chain([mutant.seed_known], seeds)
    with mutant.installed():
        for seed in seeds:
            outcome = simulate(seed, mutant.nodes, to_the_end=False)
            if outcome.violations:
                return outcome
    return None
