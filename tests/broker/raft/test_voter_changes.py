"""Voters that come and go while a leader stays."""

import pytest

from headrace_broker.protocol.errors import ErrorCode
from support.raft_simulation import World

# Longer than a leader waits for the word of a majority of its voters.
LONG_MS = 60_000


def _world(seed):
    world = World(seed, codec=True)
    world.start_all()
    world.run(20_000, lambda: world.leader() is not None)
    world.run(2000)
    return world, world.leader(), sorted({1, 2, 3} - {world.leader().id})


def _voters(world):
    return set(world.leader().node.voters.voters.ids)


def _change(world, change, node_id, expected):
    change(world.leader(), node_id)
    world.run(20_000, lambda: world.leader() is not None and _voters(world) == expected)
    world.run(1000)
    assert _voters(world) == expected


@pytest.mark.parametrize("seed", range(5))
def test_a_voter_that_comes_back_does_not_count_as_silent_since_it_went(seed):
    world, leader, others = _world(seed)
    us, epoch = leader.id, leader.node.epoch
    _change(world, world.remove_voter, others[0], {us, others[1]})
    _change(world, world.remove_voter, others[1], {us})
    world.run(LONG_MS)
    _change(world, world.add_voter, others[0], {us, others[0]})
    _change(world, world.add_voter, others[1], {1, 2, 3})
    assert (world.leader(), world.leader().node.epoch) == (leader, epoch)


def test_who_asked_for_a_change_that_was_not_committed_hears_what_to_do():
    world, leader, others = _world(7)
    for node_id in others:
        world.processes[node_id].crash()
    told = []
    world.answered = told.append
    world.remove_voter(leader, others[0])
    world.run(LONG_MS, lambda: told)
    (answer,) = told
    assert answer.error_code in {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
    }
    assert "try again" in answer.error_message


def test_a_change_waits_for_the_commit_of_the_one_before_it():
    world, leader, others = _world(7)
    for node_id in others:
        world.processes[node_id].crash()
    told = []
    world.answered = told.append
    world.remove_voter(leader, others[0])
    world.remove_voter(leader, others[1])
    world.run(200, lambda: told)
    assert told[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert "an earlier change is not committed yet" in told[0].error_message


def test_the_first_change_of_an_epoch_waits_for_a_commit_in_it():
    """Else two majorities need not meet: the correction of Raft's single-server changes."""
    world, leader, _ = _world(7)
    leader.crash()
    world.run(20_000, lambda: world.leader() is not None and world.leader() is not leader)
    successor = world.leader()
    told = []
    world.answered = told.append
    world.remove_voter(successor, leader.id)
    world.run(200, lambda: told)
    assert told[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert "an earlier change is not committed yet" in told[0].error_message
    assert _voters(world) == {1, 2, 3}
