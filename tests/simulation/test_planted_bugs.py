"""Planted bugs: each fits the source, and its known seed finds it again."""

import os

import pytest

from simulation.mutants import FOUND_AT, MUTANTS, Mutant, find

#: How many seeds a search of the ordinary run looks through: a minute at most.
_SEEDS_AGAIN = 20
#: Every sixth one, to be quick; `HEADRACE_SIMULATED=all` looks for all.
_AGAIN = list(FOUND_AT)[:: 1 if os.environ.get("HEADRACE_SIMULATED") == "all" else 6]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_planted_bug_fits_the_source_that_there_is(mutant: Mutant):
    with mutant.installed():
        pass


@pytest.mark.slow
@pytest.mark.parametrize("name", _AGAIN)
def test_a_planted_bug_is_found_again(name: str):
    """From the seed that found it on; `make simulate-mutants` searches for all, to their bounds."""
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == name)
    first = FOUND_AT[name]
    assert find(mutant, first=first, seeds_max=_SEEDS_AGAIN), (
        f"not found in {_SEEDS_AGAIN} seeds from {first} on: what the seeds do has changed."
        f' make simulate-mutants FIRST={first} NAME="{name}" finds the next one for FOUND_AT'
    )
