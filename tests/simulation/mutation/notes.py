"""Which test and which seed calls which function: who could notice that one is mutated."""

import pickle
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from simulation.mutation.forks import forked
from simulation.mutation.planting import Place, calls_noted, place_of
from simulation.run import nodes_of
from simulation.scenario import simulate

_SECONDS_MAX = 3600
# Beside other work on the machine a processor's hour takes longer than one.
_WALL_SECONDS_MAX = 6 * _SECONDS_MAX


@dataclass(kw_only=True)
class Notes:
    """Of tests by their index, or of seeds."""

    callers: dict[Place, list[int]] = field(default_factory=lambda: defaultdict(list))
    seconds: dict[int, float] = field(default_factory=dict)
    failed: list[Any] = field(default_factory=list)
    """What fails without a mutant notices nothing."""

    def calling(self, places: Iterable[Place]) -> list[int]:
        """Return who calls any of these functions, in their order."""
        return sorted({caller for place in places for caller in self.callers.get(place, ())})

    def take(self, caller: int, package: Path, work: Callable[[], bool]) -> None:
        """Note what a caller calls, unless it fails."""
        began = time.process_time()
        with calls_noted() as called:
            holds = work()
        self.seconds[caller] = time.process_time() - began
        if not holds:
            self.failed.append(caller)
            return
        for place in {place_of(code) for code in called}:
            if place[0].startswith(str(package)):
                self.callers[place].append(caller)


def note_tests(session: pytest.Session, package: Path) -> Notes:
    """Run all tests once, in a fork."""
    items = session.items

    def run(item: pytest.Item, following: pytest.Item | None) -> bool:
        before = session.testsfailed
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        return session.testsfailed == before

    def work(notes: Notes) -> None:
        for index, (item, following) in enumerate(zip(items, [*items[1:], None], strict=True)):
            notes.take(index, package, lambda: run(item, following))  # noqa: B023 - at once

    return _noted(work)


def note_seeds(seeds: Iterable[int], package: Path) -> Notes:
    """Run seeds of the mix once, in a fork."""

    def work(notes: Notes) -> None:
        for seed in seeds:
            notes.take(seed, package, lambda: not _violations(seed))  # noqa: B023 - at once

    return _noted(work)


def _violations(seed: int) -> list[str]:
    return simulate(seed, nodes_of(seed, "mix")).violations


def _noted(work: Callable[[Notes], None]) -> Notes:
    def run(say: Callable[[bytes], object]) -> int:
        notes = Notes()
        work(notes)
        notes.callers = dict(notes.callers)
        say(pickle.dumps(notes))
        return 0

    code, said = forked(run, cpu_seconds=_SECONDS_MAX, wall_seconds=_WALL_SECONDS_MAX)
    if code:
        raise RuntimeError(f"nothing was noted: code {code}, {said[-500:]!r}")
    return pickle.loads(said)  # noqa: S301 - our own fork's
