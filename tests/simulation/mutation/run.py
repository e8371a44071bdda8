"""Mutate the source: `python -m simulation.mutation.run --sample 300`.

All is imported once, the tests are collected, and it is noted which test and which seed calls which
function. Then each mutant of the sample is planted in a fork, which runs the unit tests of its
package that call the mutated function, and, where it lives, seeds that do.

The seed of the sample is printed; `--seed` draws the same one again, `--skip` goes on where a run
was ended.
"""

import argparse
import importlib
import os
import random
import resource
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from simulation.mutation.forks import forked
from simulation.mutation.notes import Notes, note_seeds, note_tests
from simulation.mutation.planting import live_functions, mutated_codes, plant
from simulation.mutation.sites import Mutation, count_mutations, mutate
from simulation.run import nodes_of
from simulation.scenario import simulate

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "broker" / "headrace_broker"
# What is mutated, and the folder of the unit tests that should notice.
PLACES = {
    "raft": "tests/broker/raft",
    "replication": "tests/broker/replication",
    "metadata": "tests/broker/metadata",
    "log": "tests/broker/log",
    "coordinator": "tests/broker/coordinator",
    "server/partitions": "tests/broker/server",
}
_UNIT = "not slow and not cluster and not java and not spark"
# Of a processor, so that other work on the machine ends no mutant.
_SECONDS_MAX = 60
_SECONDS_PER_SEED = 20


def main() -> int:
    """Run the sample; 0 always: a survivor is for a person to judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--seed", type=int, help="of the sample")
    parser.add_argument("--skip", type=int, default=0, help="how many of the sample were run")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no mutant after that")
    parser.add_argument("--simulated", type=int, default=300, help="how many seeds a survivor runs")
    parser.add_argument("--noted", type=int, default=300, help="of how many they are chosen")
    parser.add_argument("--first", type=int, default=4001, help="the first seed of those")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = int.from_bytes(os.urandom(4), "big")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(65536, hard), hard))
    os.chdir(ROOT)
    arguments = ["-q", "-s", "-p", "no:cacheprovider", "--timeout=60"]
    return pytest.main([*arguments, "-m", _UNIT, *PLACES.values()], plugins=[_Judge(options)])


class _Judge:
    """What pytest runs in the place of its tests."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._began = time.monotonic()

    def pytest_collection(self) -> None:
        """Draw the same examples for each mutant, and lose no time with making them small."""
        from hypothesis import Phase, settings  # pytest rewrites it first

        phases = (Phase.explicit, Phase.generate)
        profile = settings.get_profile("headrace")
        settings.register_profile("mutation", profile, phases=phases, derandomize=True)
        settings.load_profile("mutation")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Judge the sample, and run nothing else."""
        options = self._options
        for path in _modules():
            name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
            importlib.import_module(name.removesuffix(".__init__"))
        # Fixtures' folders are made below one, which is removed when pytest ends.
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        chosen = _sample(options.sample, options.seed)[options.skip :]
        self._say(f"seed {options.seed}: {len(chosen)} mutants, after {options.skip}")
        tests = note_tests(session, PACKAGE)
        self._say(f"{len(session.items)} tests noted; failed: {tests.failed}")
        seeds = note_seeds(range(options.first, options.first + options.noted), PACKAGE)
        self._say(f"seeds noted from {options.first}; failed: {seeds.failed}")
        functions, outcomes = live_functions(), Counter[str]()
        for number, (place, path, mutation) in enumerate(chosen, start=options.skip + 1):
            if time.monotonic() - self._began > options.seconds:
                break
            codes = mutated_codes(path, mutation)

            def planted() -> None:
                if not plant(codes, functions):  # noqa: B023 - called at once
                    raise LookupError("no such function")

            called = [key for key in codes if key in functions]
            if not called:
                outcome, detail = "unplanted", ""
            else:
                outcome, detail = self._judge(session, place, called, tests, seeds, planted)
            outcomes[outcome] += 1
            where = f"{path.relative_to(PACKAGE)}:{mutation.line}"
            self._say(f"{number:4} {outcome:10} {where}: {mutation.what}  [{detail}]")
        self._say(f"{outcomes.total()} mutants: {dict(outcomes)}")
        return True

    def _judge(self, session, place, called, tests: Notes, seeds: Notes, planted):
        """Return who killed a mutant, "tests" or "seeds", or "SURVIVES"; and more words."""
        folder = PLACES[place]
        by_time = sorted(
            (
                index
                for index in tests.calling(called)
                if session.items[index].nodeid.startswith(folder)
            ),
            key=tests.seconds.__getitem__,
        )
        items = [session.items[index] for index in by_time]

        def run_tests(say) -> int:
            planted()
            for item, following in zip(items, [*items[1:], None], strict=True):
                session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.testsfailed:
                    say(item.nodeid.encode())
                    return 1
            return 0

        if items:
            code, said = forked(run_tests, cpu_seconds=_SECONDS_MAX)
            if code:
                return "tests", said.decode() or f"code {code}"
        drawn = seeds.calling(called)[: self._options.simulated]

        def run_seeds(say) -> int:
            planted()
            for seed in drawn:
                outcome = simulate(seed, nodes_of(seed, "mix"), to_the_end=False)
                if outcome.violations:
                    say(f"seed {seed}: {outcome.violations[0].splitlines()[0][:100]}".encode())
                    return 1
            return 0

        if drawn:
            code, said = forked(run_seeds, cpu_seconds=_SECONDS_PER_SEED * len(drawn))
            if code:
                return "seeds", said.decode() or f"code {code}"
        return "SURVIVES", f"{len(items)} tests, {len(drawn)} seeds"

    def _say(self, text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self._began:6.0f} s  {text}\n")
        sys.stdout.flush()


def _modules() -> list[Path]:
    return [path for place in PLACES for path in sorted((PACKAGE / place).rglob("*.py"))]


def _sample(count: int, seed: int) -> list[tuple[str, Path, Mutation]]:
    sites = [
        (place, path, number)
        for place in PLACES
        for path in sorted((PACKAGE / place).rglob("*.py"))
        for number in range(count_mutations(path.read_text()))
    ]
    drawn = random.Random(seed).sample(sites, min(count, len(sites)))
    return [(place, path, mutate(path.read_text(), number)) for place, path, number in drawn]


if __name__ == "__main__":
    sys.exit(main())
