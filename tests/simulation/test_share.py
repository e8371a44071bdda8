"""Share groups under the simulator: seeds that found something, and what they must come to."""

from collections import Counter

import pytest

from simulation.profile import draw_profile
from simulation.scenario import simulate
from simulation.share_marks import FREQUENT
from support.samples import one_in

# Those that found a bug of the broker, and one each of 1, 3 and 5 nodes.
SEEDS = [
    (3005, 3),
    (3005, 1),
    (3005, 5),
    (3022, 5),  # share state was deleted for a snapshot that was not committed
]


@pytest.mark.parametrize(("seed", "nodes"), one_in(4, SEEDS))
def test_share_groups_hold_on_fixed_seeds(seed: int, nodes: int):
    assert "share" in draw_profile(seed, nodes).works
    outcome = simulate(seed, nodes)
    story = "\n".join([*outcome.said[-40:], *outcome.violations])
    assert not outcome.violations, f"{story}\nreplay: make simulate SEED={seed} NODES={nodes}"


@pytest.mark.slow
def test_a_few_seeds_of_share_groups_reach_what_is_frequent():
    reached: Counter[str] = Counter()
    seeds = [seed for seed in range(3000, 3100) if "share" in draw_profile(seed, 3).works][:12]
    for seed in seeds:
        outcome = simulate(seed, 3)
        assert not outcome.violations, f"replay: make simulate SEED={seed} NODES=3"
        reached += outcome.reached
    assert not [mark for mark in FREQUENT if not reached[mark]]
