"""A voter whose disk is replaced joins again by its new directory id, and no data is lost."""

import dataclasses
import uuid

import pytest

from headrace_broker.protocol.batch import NewRecord, build_batch
from headrace_broker.raft import events as ev
from headrace_broker.raft.types import ReplicaKey, VoterSet
from support.raft_disk import Disk
from support.raft_process import endpoint_of
from support.raft_simulation import World

NEW_DIRECTORY = uuid.UUID(int=0xE003)
VOTER = 3


def _write(world, count=20):
    for _ in range(count):
        leader = world.leader()
        if leader is not None:
            batch = build_batch([NewRecord(key=None, value=b"v", timestamp=1)])
            leader.step(ev.Append((batch,), leader.node.epoch))
        world.run(world.rng.randint(1, 40))


def _formed(seed):
    world = World(seed, codec=True)
    world.start_all()
    world.run(20_000, lambda: world.leader() is not None)
    _write(world)
    world.run(20_000, lambda: all(_knows(world, voter) for voter in (1, 2, 3)))
    return world


def _knows(world, node_id):
    leader = world.leader()
    voter = leader.node.voters.voters.get(node_id) if leader else None
    return voter is not None and voter.key.directory_id.int != 0


def _replace_disk(world, *, auto_join, keeps_voters_setting):
    process = world.processes[VOTER]
    process.crash()
    if world.rng.random() < 0.5:
        world.run(3000)
        _write(world, 3)
    voters = process.config.voters if keeps_voters_setting else VoterSet()
    process.config = dataclasses.replace(
        process.config,
        key=ReplicaKey(VOTER, NEW_DIRECTORY),
        voters=voters,
        bootstrap_servers=tuple(endpoint_of(node_id) for node_id in (1, 2, 3)),
        auto_join=auto_join,
    )
    process.disk, process.max_epoch_told, process.led = Disk(), 0, 0
    process.start()


@pytest.mark.parametrize("keeps_voters_setting", [False, True])
def test_it_takes_its_former_vote_away_and_votes_again(keeps_voters_setting):
    for seed in range(15):
        world = _formed(seed)
        committed = world.committed
        _replace_disk(world, auto_join=True, keeps_voters_setting=keeps_voters_setting)
        _write(world, 5)

        def votes_again(world=world):
            leader = world.leader()
            voter = leader.node.voters.voters.get(VOTER) if leader else None
            return voter is not None and voter.key.directory_id == NEW_DIRECTORY

        world.run(60_000, votes_again)
        assert votes_again(), seed
        _write(world)
        assert world.committed > committed, seed
        # It counts: with one of the others gone, the quorum of three goes on.
        world.processes[1].crash()
        world.run(20_000, lambda world=world: world.leader() is not None)
        before = world.committed
        _write(world)
        assert world.committed > before, seed


@pytest.mark.parametrize("keeps_voters_setting", [False, True])
def test_without_auto_join_it_only_follows_and_its_former_vote_stays(keeps_voters_setting):
    for seed in range(10):
        world = _formed(seed)
        _replace_disk(world, auto_join=False, keeps_voters_setting=keeps_voters_setting)
        _write(world, 5)
        world.run(10_000)
        voters = world.leader().node.voters.voters
        assert voters.ids == (1, 2, 3)
        assert voters.get(VOTER).key.directory_id != NEW_DIRECTORY
        assert not world.processes[VOTER].node.is_voter
        assert world.processes[VOTER].node.high_watermark > 0, seed


def test_an_empty_disk_never_helps_to_elect_a_leader_that_lacks_what_is_committed():
    for seed in range(15):
        world = _formed(seed)
        committed = world.committed
        # The quorum's only other whole log is away, and the leader goes as the new disk comes.
        leader = world.leader()
        away = next(each for each in world.processes.values() if each.id not in {VOTER, leader.id})
        away.crash()
        _replace_disk(world, auto_join=True, keeps_voters_setting=True)
        leader.crash()
        world.run(20_000)
        found = world.leader()
        assert found is None, seed
        world.start_all()
        world.run(60_000, lambda world=world, at=committed: world.committed > at)
        assert world.committed >= committed
