"""The simulator on fixed seeds, on fresh ones, and on itself."""

import os
from collections import Counter
from pathlib import Path

import pytest

from simulation.marks import FREQUENT, MARKS
from simulation.run import nodes_of
from simulation.scenario import Outcome, simulate
from simulation.workloads import WORKLOADS
from simulation.workloads.workload import COMPLETE_SINCE, first_of_range
from support.samples import one_in

# Seeds that found something once, and the first few.
FIXED_SEEDS = [
    (1, 1),
    (4, 1),
    (122, 1),
    (302, 1),
    (308, 1),
    (3641306915, 1),
    (1, 3),
    (119, 3),
    (219, 3),
    (294, 5),
    (684, 5),
    (4000039, 5),
    (4000079, 3),
    (4000891, 3),
    (4000259, 5),
    (4000676, 3),
    (5002011, 3),
    (5000313, 3),
    (5000883, 3),
    (4000081, 3),
    (4000353, 3),
    (4000558, 3),
    (4000686, 3),
    (6100199, 5),
    (800067, 3),
    (918253, 3),
    (6400118, 3),
    (6400124, 5),
    (7000049, 3),
    (7100203, 3),
    (7100088, 3),
    (7101293, 3),
    (7100609, 5),
    (7200545, 1),
    (8000071, 3),
    (8000054, 5),
    (8000313, 3),
    (8000314, 5),
    (8000635, 1),
    (3052533706, 3),
    (10000104, 5),
    (10000278, 3),
    (10000311, 3),
    (10000518, 3),
    (10000828, 3),
    (10000964, 5),
    (11000234, 5),
    (11000286, 3),
    (11000511, 3),
    (11300011, 3),
    (11300924, 5),
    (11300963, 3),
    (12000674, 5),
    (12000087, 1),
    (13000319, 5),
]
FRESH_SEEDS = [(int.from_bytes(os.urandom(4), "big"), nodes) for nodes in (1, 3)]


def assert_holds(outcome: Outcome, nodes: int) -> None:
    print(f"seed {outcome.seed}: {outcome.acknowledged} acknowledged, trace {outcome.trace:08x}")  # noqa: T201 - the seed must be in the output
    story = "\n".join([*outcome.said[-40:], *outcome.violations])
    assert not outcome.violations, (
        f"{story}\nreplay: make simulate SEED={outcome.seed} NODES={nodes}"
    )


def descriptors() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize(("seed", "nodes"), one_in(6, FIXED_SEEDS[::-1]))
def test_every_promise_holds_on_fixed_seeds(seed, nodes):
    assert_holds(simulate(seed, nodes), nodes)


@pytest.mark.parametrize("number", range(len(FRESH_SEEDS)))
def test_every_promise_holds_on_fresh_seeds(number):
    seed, nodes = FRESH_SEEDS[number]
    assert_holds(simulate(seed, nodes), nodes)


@pytest.mark.parametrize(
    ("seed", "nodes"),
    one_in(4, [(1, 3), (40, 1), (4000006, 3), (4000009, 5)]),
)
def test_the_same_seed_gives_the_same_trace(seed, nodes):
    first, second = simulate(seed, nodes), simulate(seed, nodes)
    assert (first.trace, first.steps) == (second.trace, second.steps)
    assert simulate(seed + 1, nodes).trace != first.trace


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_seed_leaves_as_many_descriptors_as_it_found(nodes):
    simulate(1, nodes)
    before = descriptors()
    for seed in range(1, 4):
        simulate(seed, nodes)
    assert descriptors() == before


@pytest.mark.slow
def test_a_few_seeds_reach_what_is_frequent():
    """All of the marks, over 1,000 seeds, are `make simulate-reached`'s."""
    reached: Counter[str] = Counter()
    for seed in range(1, 61):
        nodes = nodes_of(seed, "mix")
        outcome = simulate(seed, nodes)
        assert_holds(outcome, nodes)
        reached += outcome.reached
    assert set(reached) <= set(MARKS)
    assert not [mark for mark in FREQUENT if not reached[mark]]


def test_a_range_begins_where_a_seed_may_draw_all_that_there_is():
    assert first_of_range(1) == COMPLETE_SINCE + 1
    assert first_of_range(COMPLETE_SINCE + 7) == COMPLETE_SINCE + 7
    assert first_of_range(684, with_former=True) == 684
    later = [each.name for each in WORKLOADS if each.since > COMPLETE_SINCE]
    assert not later, "COMPLETE_SINCE must follow"
