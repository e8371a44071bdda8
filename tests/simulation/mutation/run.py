"""Mutate the source: `python -m simulation.mutation.run --sample 300`.

Each mutant of the sample goes through its package's unit tests and, where it lives, through
simulated seeds. The seed of the sample is printed; `--seed` draws the same one again, and `--skip`
goes on where a run was ended.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from simulation.mutation.sites import Mutation, count_mutations, mutate

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "broker" / "headrace_broker"
# What is mutated, and the unit tests that should notice.
PLACES = {
    "raft": ["tests/broker/raft"],
    "replication": ["tests/broker/replication", "tests/broker/server/test_isr_updates.py"],
    "metadata": ["tests/broker/metadata"],
    "log": ["tests/broker/log"],
    "coordinator": ["tests/broker/coordinator"],
    "server/partitions": [
        "tests/broker/server/test_isr_updates.py",
        "tests/broker/server/test_early_requests.py",
        "tests/broker/server/test_replication_by_hand.py",
        "tests/broker/server/test_fast_replication.py",
        "tests/broker/server/test_stray_replicas.py",
    ],
}
_TESTS_SECONDS_MAX = 120
_SEEDS_SECONDS_MAX = 300


def main() -> int:
    """Run the sample; 0 always: a survivor is for a person to judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=300)
    parser.add_argument("--seed", type=int, help="of the sample")
    parser.add_argument("--skip", type=int, default=0, help="how many of the sample were run")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no mutant after that")
    parser.add_argument("--simulated", type=int, default=300, help="how many seeds a survivor runs")
    options = parser.parse_args()
    seed = options.seed
    if seed is None:
        seed = int.from_bytes(os.urandom(4), "big")
    chosen = _sample(options.sample, seed)[options.skip :]
    _say(f"seed {seed}: {len(chosen)} mutants, after {options.skip}")
    began, outcomes = time.monotonic(), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for number, (place, path, mutation) in enumerate(chosen, start=options.skip + 1):
            if time.monotonic() - began > options.seconds:
                break
            outcome = _judge(Path(folder), place, path, mutation, options.simulated)
            outcomes[outcome] += 1
            where = f"{path.relative_to(PACKAGE)}:{mutation.line}"
            _say(f"{number:4} {outcome:10} {where}: {mutation.what}")
    _say(f"{outcomes.total()} mutants: {dict(outcomes)}, {time.monotonic() - began:.0f} s")
    return 0


def _sample(count: int, seed: int) -> list[tuple[str, Path, Mutation]]:
    sites = [
        (place, path, number)
        for place in PLACES
        for path in sorted((PACKAGE / place).rglob("*.py"))
        for number in range(count_mutations(path.read_text()))
    ]
    drawn = random.Random(seed).sample(sites, min(count, len(sites)))
    return [(place, path, mutate(path.read_text(), number)) for place, path, number in drawn]


def _judge(folder: Path, place: str, path: Path, mutation: Mutation, seeds: int) -> str:
    """Return who killed a mutant: "tests", "seeds", or "SURVIVES"."""
    copy = folder / PACKAGE.name
    if not copy.exists():
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    target = copy / path.relative_to(PACKAGE)
    target.write_text(mutation.source)
    environment = os.environ | {
        "PYTHONPATH": str(folder),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    tests = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    if _fails([*tests, *PLACES[place]], ROOT, environment, _TESTS_SECONDS_MAX):
        outcome = "tests"
    elif _fails(
        [sys.executable, "-m", "simulation.mutation.seeds", "--seeds", str(seeds)],
        ROOT / "tests",
        environment,
        _SEEDS_SECONDS_MAX,
    ):
        outcome = "seeds"
    else:
        outcome = "SURVIVES"
    target.write_text(path.read_text())
    return outcome


def _fails(command: list[str], folder: Path, environment: dict[str, str], seconds: int) -> bool:
    """Whether a command fails; one that hangs does."""
    try:
        ended = subprocess.run(
            command, cwd=folder, env=environment, timeout=seconds, capture_output=True, check=False
        )
    except subprocess.TimeoutExpired:
        return "seeds" not in command[2]
    return ended.returncode != 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
