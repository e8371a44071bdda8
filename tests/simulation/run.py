"""Run seeds: `python -m simulation.run --seed 7`, or `--first 1 --seeds 1000 --jobs 2`."""

import argparse
import multiprocessing
import os
import resource
import sys
import time

from simulation.scenario import Outcome, simulate


def main() -> int:
    """Run the seeds asked for; 1 where any of them found a violation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one and show what happened")
    parser.add_argument("--first", type=int, help="the first of a range; a fresh one otherwise")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (min(65536, hard), hard) if soft < hard else (soft, hard)
    )
    if options.seed is not None:
        outcome = simulate(options.seed, options.nodes)
        say("\n".join(outcome.said))
        return report(outcome, options.nodes)
    first = options.first
    if first is None:
        first = int.from_bytes(os.urandom(4), "big")
    say(f"seeds {first} to {first + options.seeds - 1}, {options.nodes} nodes")
    began = time.monotonic()
    failed = 0
    seeds = [(seed, options.nodes) for seed in range(first, first + options.seeds)]
    with multiprocessing.Pool(options.jobs, maxtasksperchild=200) as pool:
        acknowledged = 0
        for outcome in pool.imap(_simulate, seeds):
            acknowledged += outcome.acknowledged
            if outcome.violations:
                failed += 1
                report(outcome, options.nodes)
    say(
        f"{failed} of {options.seeds} seeds with violations, {acknowledged} acknowledged writes, "
        f"{time.monotonic() - began:.1f} s"
    )
    return 1 if failed else 0


def say(text: str) -> None:
    """Print a line at once, also into a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _simulate(arguments: tuple[int, int]) -> Outcome:
    return simulate(*arguments)


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
