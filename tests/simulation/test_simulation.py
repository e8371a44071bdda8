"""The simulator on fixed seeds, on fresh ones, on itself, and on planted bugs."""

import os

import pytest

from simulation.mutants import MUTANTS, Mutant
from simulation.scenario import Outcome, simulate

FIXED_SEEDS = range(1, 6)
FRESH_SEEDS = [int.from_bytes(os.urandom(4), "big") for _ in range(5)]


def assert_holds(outcome: Outcome, nodes: int) -> None:
    print(f"seed {outcome.seed}: {outcome.acknowledged} acknowledged, trace {outcome.trace:08x}")  # noqa: T201 - the seed must be in the output
    story = "\n".join([*outcome.said[-40:], *outcome.violations])
    assert not outcome.violations, (
        f"{story}\nreplay: make simulate SEED={outcome.seed} NODES={nodes}"
    )
    assert outcome.acknowledged


@pytest.mark.parametrize("seed", FIXED_SEEDS)
def test_one_node_keeps_its_promises_on_fixed_seeds(seed):
    assert_holds(simulate(seed), 1)


@pytest.mark.parametrize("number", range(len(FRESH_SEEDS)))
def test_one_node_keeps_its_promises_on_fresh_seeds(number):
    assert_holds(simulate(FRESH_SEEDS[number]), 1)


@pytest.mark.parametrize("seed", [1, 40])
def test_the_same_seed_gives_the_same_trace(seed):
    first, second = simulate(seed), simulate(seed)
    assert (first.trace, first.steps) == (second.trace, second.steps)
    assert simulate(seed + 1).trace != first.trace


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_planted_bug_is_found(mutant: Mutant):
    with mutant.installed():
        found = any(
            simulate(seed, mutant.nodes).violations for seed in range(1, mutant.seeds_max + 1)
        )
    assert found, f"{mutant.name}: not found in {mutant.seeds_max} seeds"
