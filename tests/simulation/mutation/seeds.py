"""Run seeds until one finds something: 1 then, 0 where none of them does."""

import argparse
import sys

from simulation.run import nodes_of
from simulation.scenario import simulate


def main() -> int:
    """Run the seeds asked for, of the mix."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=300)
    options = parser.parse_args()
    for seed in range(options.first, options.first + options.seeds):
        outcome = simulate(seed, nodes_of(seed, "mix"), to_the_end=False)
        if outcome.violations:
            sys.stdout.write(f"seed {seed}: {outcome.violations[0]}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
