"""Voters that come and go while a leader stays."""

import pytest

from support.raft_simulation import World

# Longer than a leader waits for the word of a majority of its voters.
LONG_MS = 60_000


def _voters(world):
    return set(world.leader().node.voters.voters.ids)


def _change(world, change, node_id, expected):
    change(world.leader(), node_id)
    world.run(20_000, lambda: world.leader() is not None and _voters(world) == expected)
    world.run(1000)
    assert _voters(world) == expected


@pytest.mark.parametrize("seed", range(5))
def test_a_voter_that_comes_back_does_not_count_as_silent_since_it_went(seed):
    world = World(seed, codec=True)
    world.start_all()
    world.run(20_000, lambda: world.leader() is not None)
    world.run(2000)
    leader, epoch = world.leader(), world.leader().node.epoch
    us = leader.id
    others = sorted({1, 2, 3} - {us})
    _change(world, world.remove_voter, others[0], {us, others[1]})
    _change(world, world.remove_voter, others[1], {us})
    world.run(LONG_MS)
    _change(world, world.add_voter, others[0], {us, others[0]})
    _change(world, world.add_voter, others[1], {1, 2, 3})
    assert (world.leader(), world.leader().node.epoch) == (leader, epoch)
