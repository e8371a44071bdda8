"""Search for planted bugs: `python -m simulation.mutants.run`, or `--name checkpoints --seeds 500`.

Each mutant is looked for from its known seed on, then from the first seed to its bound. `--record
FILE` keeps what was found from a first seed, so that a long search can be made in pieces.
"""

import argparse
import functools
import gc
import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

from simulation.mutants import FOUND_AT, MUTANTS, find
from simulation.mutants.mutant import fitting
from simulation.workloads.workload import first_of_range


def main() -> int:
    """Name the seed that finds each mutant; 1 where one is not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="", help="only mutants whose name has this in it")
    parser.add_argument(
        "--first",
        type=int,
        help="search from here, whatever seed is known; as `simulation.run` takes it",
    )
    parser.add_argument("--former", action="store_true", help="as `simulation.run` has it")
    parser.add_argument("--seeds", type=int, help="instead of each mutant's own bound")
    parser.add_argument("--jobs", type=int, default=1, help="how many mutants at a time")
    parser.add_argument("--unfound", action="store_true", help="only those without a known seed")
    parser.add_argument("--record", type=Path, help="a file that keeps what each search gave")
    options = parser.parse_args()
    gc.freeze()
    left_out = FOUND_AT if options.unfound else ()
    names = [each.name for each in MUTANTS if options.name in each.name]
    names = [name for name in names if name not in left_out]
    first = options.first
    if first is not None:
        first = first_of_range(first, with_former=options.former)
    elif options.record is not None:
        parser.error("--record needs --first: a known seed says nothing of a search")
    known = [] if options.record is None else recorded(options.record)
    done = {each["name"] for each in known if each["first"] == first}
    names = [name for name in names if name not in done]
    search = functools.partial(_search, first=first, seeds_max=options.seeds)
    missed = 0
    with multiprocessing.Pool(options.jobs, maxtasksperchild=1) as pool:
        for facts, text in pool.imap_unordered(search, names):
            missed += facts["seed"] is None
            if options.record is not None:
                with options.record.open("a") as file:
                    file.write(json.dumps(facts) + "\n")
            sys.stdout.write(text)
            sys.stdout.flush()
    sys.stdout.write(f"{missed} of {len(names)} not found\n")
    return 1 if missed else 0


def recorded(path: Path) -> list[dict[str, Any]]:
    """Return the searches in a file: of what, from which first seed, and which seed found it."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def _search(name: str, first: int | None, seeds_max: int | None) -> tuple[dict[str, Any], str]:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    began = time.process_time()
    outcome = find(mutant, first=first, seeds_max=seeds_max)
    taken = f"{time.process_time() - began:.1f} s of CPU"
    searched = seeds_max or mutant.seeds_max
    if outcome is None:
        what = f"NOT FOUND in {searched} seeds"
    else:
        what = f"seed {outcome.seed}: {outcome.violations[0].splitlines()[0][:110]}"
        if first is not None:
            searched = 1 + next(
                place for place, seed in enumerate(fitting(mutant, first)) if seed == outcome.seed
            )
    seed = None if outcome is None else outcome.seed
    facts = {"name": name, "first": first, "searched": searched, "seed": seed}
    return facts, f"{name} ({mutant.nodes} nodes, {taken}): {what}\n"


if __name__ == "__main__":
    sys.exit(main())
