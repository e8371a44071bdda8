"""Run seeds: `python -m simulation.run --seed 7`, or `--seeds 1000 --jobs 2`.

`--nodes mix` gives each seed its number of nodes: of ten, four run 1, four run 3, and two run 5.
`--record FILE` keeps what each seed gave, so that a range can be run in pieces: seeds in the file
are counted and not run again.
"""

import argparse
import gc
import itertools
import json
import multiprocessing
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from simulation.marks import MARKS
from simulation.scenario import Outcome, simulate
from simulation.workloads.workload import COMPLETE_SINCE, first_of_range

_SEEDS_BETWEEN_WORDS = 500
MIX = (1, 3, 1, 3, 5, 1, 3, 1, 3, 5)


def nodes_of(seed: int, nodes: str) -> int:
    """Return how many nodes a seed runs."""
    return MIX[seed % len(MIX)] if nodes == "mix" else int(nodes)


def main() -> int:
    """Run the seeds asked for; 1 where any of them found a violation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one and show what happened")
    parser.add_argument(
        "--first",
        type=int,
        help=f"the first of a range, counted from {COMPLETE_SINCE} where it is below; a fresh one "
        "otherwise",
    )
    parser.add_argument(
        "--former",
        action="store_true",
        help="take --first as it is: seeds of former simulators, with fewer clients and faults",
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--nodes", default="mix", help="a number, or mix")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--reached", action="store_true", help="fail where too few of 1,000 seeds reach a mark"
    )
    parser.add_argument("--record", type=Path, help="a file that keeps what each seed gave")
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (min(65536, hard), hard) if soft < hard else (soft, hard)
    )
    if options.seed is not None:
        nodes = nodes_of(options.seed, options.nodes)
        outcome = simulate(options.seed, nodes)
        say("\n".join(outcome.said))
        return report(outcome, nodes)
    first = options.first
    if first is None:
        first = int.from_bytes(os.urandom(4), "big")
    first = first_of_range(first, with_former=options.former)
    say(f"seeds {first} to {first + options.seeds - 1}, {options.nodes} nodes")
    began = time.monotonic()
    failed = 0
    seeds = [(seed, nodes_of(seed, options.nodes)) for seed in range(first, first + options.seeds)]
    known = _recorded(options.record, seeds)
    gc.freeze()  # what is loaded by now is looked through by no collection of a seed's
    with multiprocessing.Pool(options.jobs, maxtasksperchild=200) as pool:
        acknowledged, reached, by_seeds = 0, Counter[str](), Counter[str]()
        fresh = pool.imap(_simulate, [seed for seed in seeds if seed not in known])
        outcomes = itertools.chain(known.values(), _kept(options.record, fresh))
        for done, (nodes, outcome) in enumerate(outcomes, start=1):
            acknowledged += outcome.acknowledged
            reached += outcome.reached
            by_seeds.update(outcome.reached.keys())
            if outcome.violations:
                failed += 1
                report(outcome, nodes)
            if not done % _SEEDS_BETWEEN_WORDS:
                say(f"{done} seeds, {failed} with violations, {time.monotonic() - began:.0f} s")
    say(table(reached, by_seeds, options.seeds))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    say(
        f"{failed} of {options.seeds} seeds with violations, {acknowledged} acknowledged writes, "
        f"{time.monotonic() - began:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of CPU"
    )
    missing = [mark for mark, least in MARKS.items() if by_seeds[mark] < least]
    if options.reached and missing:
        say(f"reached by too few seeds: {missing}")
        return 1
    return 1 if failed else 0


def _recorded(
    path: Path | None, seeds: list[tuple[int, int]]
) -> dict[tuple[int, int], tuple[int, Outcome]]:
    """Return what the file says of these seeds, by seed and nodes."""
    found: dict[tuple[int, int], tuple[int, Outcome]] = {}
    for line in path.read_text().splitlines() if path is not None and path.exists() else ():
        nodes, facts = json.loads(line)
        outcome = Outcome(**facts | {"reached": Counter(facts["reached"])})
        if (outcome.seed, nodes) in seeds:
            found[outcome.seed, nodes] = nodes, outcome
    return found


def _kept(
    path: Path | None, outcomes: Iterable[tuple[int, Outcome]]
) -> Iterator[tuple[int, Outcome]]:
    """Write each outcome to the file as it comes."""
    for nodes, outcome in outcomes:
        if path is not None:
            facts = vars(outcome) | {"said": outcome.said[-40:] if outcome.violations else []}
            with path.open("a") as file:
                file.write(json.dumps([nodes, facts]) + "\n")
        yield nodes, outcome


def table(reached: Counter[str], by_seeds: Counter[str], seeds: int) -> str:
    """Return the table of rare situations: how many seeds came to each, and how often."""
    lines = [f"reached by how many of {seeds} seeds, and how often:"]
    lines += [
        f"{by_seeds[mark]:6} {reached[mark]:8}  {mark}" for mark in sorted(MARKS, key=str.lower)
    ]
    return "\n".join(lines)


def say(text: str) -> None:
    """Print a line at once, also into a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _simulate(arguments: tuple[int, int]) -> tuple[int, Outcome]:
    return arguments[1], simulate(*arguments)


def report(outcome: Outcome, nodes: int) -> int:
    """Print an outcome, and the command that replays it where it is bad."""
    say(
        f"seed {outcome.seed}: {outcome.acknowledged} acknowledged, {outcome.reads} read, "
        f"{outcome.steps} steps, {outcome.seconds:.1f} simulated s, trace {outcome.trace:08x}"
    )
    for violation in outcome.violations:
        say(f"  VIOLATION {violation}")
    if outcome.violations:
        say(f"  replay: make simulate SEED={outcome.seed} NODES={nodes}")
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
