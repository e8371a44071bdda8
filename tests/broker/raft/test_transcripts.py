"""What the quorum says and does, to be read: the files beside this one are the expectation.

RAFT_WRITE_TRANSCRIPTS=1 writes them again; read the difference before you commit it.
"""

import os
from pathlib import Path

import pytest

from headrace_broker.raft import events as ev
from support.raft_process import Process
from support.raft_transcript import CalmWorld

FOLDER = Path(__file__).parent / "transcripts"


def check(name: str, transcript: str) -> None:
    path = FOLDER / f"{name}.txt"
    if os.environ.get("RAFT_WRITE_TRANSCRIPTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(transcript)
    assert transcript == path.read_text()


@pytest.fixture
def world() -> CalmWorld:
    """Three voters, one of which leads; all have the same log."""
    made = CalmWorld()
    made.start_all()
    made.run(1500)
    assert made.leader() is not None
    made.take()
    return made


def others(world: CalmWorld) -> list[Process]:
    leader = world.leader()
    return [process for process in world.processes.values() if process is not leader]


def test_kip_595_a_quorum_of_one_elects_itself_within_its_first_step():
    world = CalmWorld(voters=1)
    world.start_all()
    assert world.leader() is world.processes[1]
    world.run(20)
    check("quorum_of_one", world.take())


def test_raft_5_2_and_kip_996_three_voters_elect_a_leader_after_a_pre_vote():
    world = CalmWorld()
    world.start_all()
    world.run(60)
    check("election", world.take())


def test_kip_595_a_leader_tells_nothing_to_voters_that_fetch(world):
    world.run(5000)
    transcript = world.take()
    assert "BeginQuorumEpoch" not in transcript
    assert transcript.count("FetchRequest") > 10


def test_raft_5_3_an_append_is_committed_by_the_fetches_of_a_majority(world):
    world.leader().append()
    world.run(30)
    check("append", world.take())


def test_kip_996_a_follower_that_hears_from_its_leader_refuses_a_pre_vote(world):
    cut_off = others(world)[0]
    leader = world.leader()
    world.blocked = {(leader.id, cut_off.id), (cut_off.id, leader.id)}
    epoch = leader.node.epoch
    world.run(2500, until=lambda: cut_off.node.role == "prospective")
    assert cut_off.node.role == "prospective"
    world.take()
    world.run(40)
    check("pre_vote_refused", world.take())
    world.blocked = set()
    world.run(2000)
    assert world.leader() is leader
    assert leader.node.epoch == epoch, "who was cut off does not disturb the epoch"


def test_a_leader_whose_process_died_is_followed_within_a_fraction_of_the_fetch_timeout(world):
    dead = world.leader()
    dead.crash()
    started = world.now
    world.run(1000, until=lambda: world.leader() is not None)
    assert world.now - started < 150
    world.run(20)
    check("failover", world.take())


def test_kip_595_a_leader_that_hangs_is_followed_after_the_fetch_timeout(world):
    world.leader().paused_until = world.now + 10_000
    hung, started = world.leader(), world.now
    world.run(
        5000,
        until=lambda: (
            world.leader() is not hung
            and world.leader() is not None
            and world.leader().node.epoch > hung.node.epoch
        ),
    )
    assert world.now - started < 2500


def test_kip_595_a_graceful_leader_hands_over_to_the_follower_that_is_furthest(world):
    leader = world.leader()
    started = world.now
    leader.step(ev.Resign())
    world.run(1000, until=lambda: world.leader() is not None)
    assert world.now - started < 50
    check("handover", world.take())


def test_raft_6_2_a_leader_that_hears_from_no_majority_resigns(world):
    leader = world.leader()
    epoch = leader.node.epoch
    for other in others(world):
        world.blocked |= {(leader.id, other.id), (other.id, leader.id)}
    world.run(4000)
    assert not leader.node.is_leader
    assert leader.node.epoch == epoch
    assert world.leader() is not None


def test_kip_595_a_log_that_diverged_is_truncated_by_epoch_not_by_high_watermark(world):
    old, follower = world.leader(), others(world)[0]
    for other in others(world):
        world.blocked |= {(old.id, other.id), (other.id, old.id)}
    old.append()
    old.append()
    lost = old.disk.end
    world.run(4000)
    world.leader().append()
    world.run(100)
    assert old.node.end_offset == lost
    world.take()
    world.blocked.clear()
    world.run(1200)
    assert old.digest == follower.digest
    lines = world.take().splitlines(keepends=True)
    about = [line for line in lines if "diverging" in line or f" {old.id}  " in line]
    check("truncation", "".join(about[:12]))


def test_kip_630_a_replica_behind_the_logs_start_loads_the_leaders_snapshot(world):
    behind = others(world)[0]
    behind.crash()
    world.run(100)
    for _ in range(2):
        world.leader().append()
        world.run(50)
        for process in world.processes.values():
            process.make_snapshot()
    world.run(50)
    assert world.leader().disk.start > behind.disk.end
    world.take()
    behind.start()
    world.run(60)
    assert behind.digest == world.leader().digest
    lines = world.take().splitlines(keepends=True)
    check("snapshot", "".join(line for line in lines if "Vote" not in line))


def test_kip_853_an_observer_becomes_a_voter_and_a_leader_removes_itself():
    world = CalmWorld(voters=3, observers=1)
    world.start_all()
    world.run(4000)
    first = world.leader()
    assert first.node.voters.voters.ids == (1, 2, 3)
    world.take()
    world.add_voter(first, 4)
    world.run(60)
    assert first.node.voters.voters.ids == (1, 2, 3, 4)
    world.remove_voter(first, first.id)
    world.run(200)
    assert first.id not in world.leader().node.voters.voters.ids
    check("voter_change", world.take())


def test_kip_853_only_one_change_of_the_voters_at_a_time(world):
    world.run(4000)
    leader = world.leader()
    one, two = others(world)
    world.take()
    world.remove_voter(leader, one.id)
    world.remove_voter(leader, two.id)
    world.run(60)
    assert len(leader.node.voters.voters) == 2
    assert "REQUEST_TIMED_OUT" in world.take()
