"""Search for planted bugs: `python -m simulation.mutants.run`, or `--name checkpoints --seeds 500`.

Each mutant is looked for from its known seed on, then from the first seed to its bound.
"""

import argparse
import gc
import sys
import time

from simulation.mutants import MUTANTS, Mutant, find


def main() -> int:
    """Name the seed that finds each mutant; 1 where one is not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="", help="only mutants whose name has this in it")
    parser.add_argument("--first", type=int, help="search from here, whatever seed is known")
    parser.add_argument("--seeds", type=int, help="instead of each mutant's own bound")
    options = parser.parse_args()
    gc.freeze()
    missed = 0
    for mutant in MUTANTS:
        if options.name in mutant.name:
            missed += not _search(mutant, options.first, options.seeds)
    return 1 if missed else 0


def _search(mutant: Mutant, first: int | None, seeds_max: int | None) -> bool:
    began = time.process_time()
    outcome = find(mutant, first=first, seeds_max=seeds_max)
    taken = f"{time.process_time() - began:.1f} s of CPU"
    if outcome is None:
        what = f"NOT FOUND in {seeds_max or mutant.seeds_max} seeds"
    else:
        what = f"seed {outcome.seed}: {outcome.violations[0].splitlines()[0][:110]}"
    sys.stdout.write(f"{mutant.name} ({mutant.nodes} nodes, {taken}): {what}\n")
    sys.stdout.flush()
    return outcome is not None


if __name__ == "__main__":
    sys.exit(main())
