"""How a planted bug is described and installed."""

import contextlib
import functools
import importlib
import itertools
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import headrace_broker
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
        """Plant the bug wherever its function has come by an import, and take it out again."""
        places = ((self.owner, self.attribute, self.replace), *self.also)
        planted = {(id(owner), name) for owner, name, _ in places}
        were: list[tuple[Any, str, Any]] = []
        try:
            for owner, name, replace in places:
                was = vars(owner)[name]
                bug = replace(was)
                for where, by_name in ((owner, name), *_importers(owner, name, was)):
                    if where is owner or (id(where), by_name) not in planted:
                        were.append((where, by_name, was))
                        setattr(where, by_name, bug)
            yield
        finally:
            for where, name, was in were:
                setattr(where, name, was)


def _importers(owner: Any, name: str, value: Any) -> list[tuple[ModuleType, str]]:
    """Return which modules have something of a module by `from ... import`, and under which name.

    All are imported first: one that comes later would keep the planted bug for good.
    """
    modules = _modules()
    if not isinstance(owner, ModuleType):
        return []
    return [
        (module, by_name)
        for module in modules
        for by_name, each in vars(module).items()
        if module is not owner
        and each is value
        and (by_name == name or isinstance(value, FunctionType))
    ]


@functools.cache
def _modules() -> tuple[ModuleType, ...]:
    found = pkgutil.walk_packages(headrace_broker.__path__, "headrace_broker.")
    names = [each.name for each in found if not each.name.endswith("__main__")]
    return tuple(map(importlib.import_module, names))


def does(*names: str) -> Callable[[Profile], bool]:
    """Return what tells whether a seed runs all of these workloads."""
    return lambda profile: profile.works.issuperset(names)


def rules_with(**defaults: Any) -> Callable[..., Mutant]:
    """Return what makes mutants, with these options where others are not given."""

    def rule(name: str, owner: Any, attribute: str, replace: Replace, **options: Any) -> Mutant:
        return Mutant(
            name=name, owner=owner, attribute=attribute, replace=replace, **defaults | options
        )

    return rule


def fitting(mutant: Mutant, first: int) -> Iterator[int]:
    """Yield the seeds that can find a mutant at all, from a first one on."""
    for seed in itertools.count(max(mutant.since, first)):
        if mutant.needs(draw_profile(seed, mutant.nodes)):
            yield seed


def find(
    mutant: Mutant, *, first: int | None = None, seeds_max: int | None = None
) -> Outcome | None:
    """Return what the first seed that finds a mutant gave, None where it stays hidden."""
    seeds: Iterator[int] = itertools.islice(
        fitting(mutant, 1 if first is None else first), seeds_max or mutant.seeds_max
    )
    if first is None and mutant.seed_known is not None:
        seeds = itertools.chain([mutant.seed_known], seeds)
    with mutant.installed():
        for seed in seeds:
            outcome = simulate(seed, mutant.nodes, to_the_end=False)
            if outcome.violations:
                return outcome
    return None
