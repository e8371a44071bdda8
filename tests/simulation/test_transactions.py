"""Transactions under the simulator: seeds that found something, and what they must come to."""

import pytest

from simulation.profile import draw_profile
from simulation.scenario import simulate
from support.samples import one_in

# Those that found a bug of the broker, and one each of 1, 3 and 5 nodes.
SEEDS = [
    (4, 5),
    (7, 1),
    (13, 3),
    (363, 3),  # a truncation to the high watermark held ended transactions back
    (51, 3),  # a follower vouched in another partition's request for what no fsync covered yet
    (2442, 1),  # a short write left a piece of an entry in the index of aborted transactions
    (6000, 3),  # from here on `transaction.version` changes meanwhile
    (6005, 3),
    (6032, 3),
    (
        700144,
        5,
    ),  # an older successor's end was taken for a fenced producer's own, and named its epoch
    (9000014, 3),  # a commit that was refused was pending again once the next one was refused, too
    (3000172, 1),  # nobody asked for a marker's error: its coordinator's connection had ended
]


@pytest.mark.parametrize(("seed", "nodes"), one_in(4, SEEDS))
def test_transactions_hold_on_fixed_seeds(seed: int, nodes: int):
    assert "transactions" in draw_profile(seed, nodes).works
    outcome = simulate(seed, nodes)
    story = "\n".join([*outcome.said[-40:], *outcome.violations])
    assert not outcome.violations, f"{story}\nreplay: make simulate SEED={seed} NODES={nodes}"
