"""Who must have what is committed, as the simulator judges it, of real replicas."""

from types import SimpleNamespace
from uuid import UUID

import pytest

from headrace_broker.log.config import LogConfig
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.metadata.entities import PartitionImage
from headrace_broker.server.partitions.partition import Partition
from headrace_broker.server.partitions.replica_host import ReplicaHost
from simulation.history import History
from simulation.invariants.replication import Replication
from simulation.observing import observed
from support.log import START_MS, ManualClock, batch_of

_LEADER, _FOLLOWER, _PAUSED = _ALL = (1, 2, 3)
_MISSING = {"in-sync-without-the-committed"}


class Trio:
    """Three replicas, of which one is paused, and what an invariant says of who still runs."""

    def __init__(self, root):
        self.history = History(lambda: START_MS)
        self.replicas = {}
        for node_id in _ALL:
            path = root / str(node_id) / "events-0"
            log = PartitionLog.open(path, LogConfig(), clock=ManualClock())
            self.replicas[node_id] = Partition("events", UUID(int=7), 0, log, ReplicaHost(node_id))
        self.cluster = SimpleNamespace(nodes=[])
        self.invariant = Replication(self.cluster, self.history)

    def tell(self, isr, partition_epoch, *node_ids):
        """Tell nodes of an in-sync set that is committed."""
        image = PartitionImage(
            leader=_LEADER,
            leader_epoch=1,
            partition_epoch=partition_epoch,
            replicas=_ALL,
            isr=isr,
        )
        for node_id in node_ids:
            self.replicas[node_id].apply(image, 2)

    def write(self):
        """Append a record, which all but the paused replica fetch."""
        leader = self.replicas[_LEADER]
        leader.append(batch_of(b"record"), -1, START_MS)
        records = leader.log.read(0, 1000, upper_bound=1, at_least_one=True)
        self.replicas[_FOLLOWER].append_as_follower(records)
        leader.record_fetch(_FOLLOWER, 1, 1)

    def follow(self):
        """Tell the follower what its leader has committed."""
        self.replicas[_FOLLOWER].follow_high_watermark(self.replicas[_LEADER].high_watermark, 0)

    def look(self, *node_ids):
        """Look at the nodes that run; return the kinds of all violations."""
        self.cluster.nodes = [
            SimpleNamespace(
                node_id=node_id,
                is_ready=True,
                has_failed_directory=False,
                broker=SimpleNamespace(replicas=[self.replicas[node_id]]),
            )
            for node_id in node_ids
        ]
        for node in self.cluster.nodes:
            self.invariant.check_node(node)
        self.invariant.check()
        return {violation.split(":")[0] for violation in self.history.violations}


@pytest.fixture
def trio(tmp_path, monkeypatch):
    monkeypatch.setattr(ReplicaHost, "now_ms", lambda _: START_MS)
    trio = Trio(tmp_path)
    with observed(trio.history):
        trio.tell(_ALL, 1, *_ALL)
        trio.write()
        yield trio
    for replica in trio.replicas.values():
        replica.log.abandon()


def _by_metadata(trio):
    trio.tell((_LEADER, _FOLLOWER), 2, _LEADER)


def _by_an_answer(trio):
    trio.replicas[_LEADER].isr_committed(1, (_LEADER, _FOLLOWER), 2)


@pytest.mark.parametrize("learn", [_by_metadata, _by_an_answer])
def test_a_leader_may_end_before_anybody_else_knows_the_set_by_which_it_committed(trio, learn):
    """Seed 7101293 with 3 nodes: between two looks it commits, tells a follower, and ends."""
    assert trio.look(*_ALL) == set()
    learn(trio)
    trio.follow()
    assert trio.replicas[_FOLLOWER].high_watermark == 1
    assert trio.look(_FOLLOWER, _PAUSED) == set()
    trio.tell((_LEADER, _FOLLOWER), 2, _FOLLOWER)
    assert trio.look(_FOLLOWER, _PAUSED) == set()


@pytest.mark.parametrize("running", [_ALL, (_FOLLOWER, _PAUSED)])
def test_a_leader_that_commits_without_one_in_sync_is_found_whether_or_not_it_ends(trio, running):
    trio.replicas[_LEADER]._commit(1)
    trio.follow()
    assert trio.look(*running) >= _MISSING


def test_who_is_in_sync_again_without_the_committed_is_found_when_its_leader_has_ended(trio):
    _by_metadata(trio)
    trio.follow()
    assert trio.look(*_ALL) == set()
    trio.tell(_ALL, 3, _LEADER)
    assert trio.look(_FOLLOWER, _PAUSED) == _MISSING
