"""A leader epoch that the disk changed, as the last one of a log: nothing there contradicts it."""

from uuid import UUID

import pytest

from headrace_broker.log.batches import iterate_headers
from headrace_broker.log.config import LogConfig
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.metadata.entities import PartitionImage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.replication.follower import EpochEnd, diverging_epoch
from headrace_broker.server.partitions.partition import Partition
from headrace_broker.server.partitions.replica_host import ReplicaHost
from support.log import START_MS, ManualClock, append, batch_of, content, open_at, write_epoch

US, OTHER = 1, 2
FALSE = 16


@pytest.fixture
def replica(tmp_path, monkeypatch):
    """Make a replica of three records of epoch 1; the disk has changed the epoch of the last."""
    folder, clock = tmp_path / "t-0", ManualClock()
    log = PartitionLog.open(folder, LogConfig(), clock=clock)
    for number in range(3):
        append(log, batch_of(b"%d" % number), epoch=1)
    log.abandon()
    write_epoch(log, 2, FALSE)
    log = open_at(folder, clock)
    assert log.leader_epochs.entries == [(1, 0), (FALSE, 2)]
    monkeypatch.setattr(ReplicaHost, "now_ms", lambda _: START_MS)
    host = ReplicaHost(US)
    damaged = []
    host.on_damage = lambda topic_id, index: damaged.append((topic_id, index))
    partition = Partition("t", UUID(int=7), 0, log, host)
    yield partition, damaged
    log.abandon()


def image(leader, isr, epoch=3, partition_epoch=1):
    return PartitionImage(
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=partition_epoch,
        replicas=(US, OTHER),
        isr=isr,
    )


def epochs(log):
    return [next(iterate_headers(batch))[1].partition_leader_epoch for batch in content(log)]


def test_a_leader_that_is_alone_keeps_the_records_in_its_own_epoch(replica):
    """They are whole. Whoever has others there, in whatever epoch, drops these first."""
    partition, damaged = replica
    partition.apply(image(US, (US,)), 1)
    log = partition.log
    assert log.leader_epochs.entries == [(1, 0), (3, 2)]
    partition.append(batch_of(b"next"), acks=1, now_ms=START_MS)
    assert epochs(log) == [1, 1, 3, 3]
    for epoch_there in (1, 2):
        assert diverging_epoch(log.leader_epochs, epoch_there, 3) == EpochEnd(1, 2)
    assert not damaged
    log.flush()
    again = open_at(log.directory, ManualClock())
    assert again.leader_epochs.entries == [(1, 0), (3, 2)]
    assert epochs(again) == [1, 1, 3, 3]
    again.abandon()


def test_it_does_not_lead_while_another_one_is_in_sync(replica):
    """That one would truncate its good copy, which may be committed, to this log."""
    partition, damaged = replica
    assert partition.apply(image(US, (US, OTHER)), 1)
    assert partition.leading is None
    assert damaged == [(UUID(int=7), 0)]
    assert [(each.first_offset, each.next_offset) for each in partition.log.damages] == [(2, 3)]
    assert partition.log.leader_epochs.entries == [(1, 0)]
    assert not partition.apply(image(US, (US, OTHER), partition_epoch=2), 1)
    partition.apply(image(US, (US, OTHER), epoch=4, partition_epoch=3), 1)
    assert partition.leading is None
    # The other one leads, as it should: what is damaged is cut.
    partition.apply(image(OTHER, (OTHER,), epoch=5, partition_epoch=4), 1)
    assert partition.cut_damage() == 2
    partition.apply(image(US, (US, OTHER), epoch=6, partition_epoch=5), 1)
    assert partition.leading is not None


def test_it_leads_once_no_other_one_is_in_sync(replica):
    partition, _ = replica
    partition.apply(image(US, (US, OTHER)), 1)
    partition.apply(image(US, (US,), partition_epoch=2), 1)
    assert partition.leading is not None
    partition.append(batch_of(b"next"), acks=1, now_ms=START_MS)
    with pytest.raises(ApiError) as caught:
        partition.log.read(2, 1, upper_bound=4, at_least_one=True)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert epochs_at(partition.log, 3) == [3]


def epochs_at(log, offset):
    data = log.read(offset, 1, upper_bound=log.log_end_offset, at_least_one=True)
    return [header.partition_leader_epoch for _, header in iterate_headers(data)]


def test_a_follower_does_not_believe_its_epoch_where_its_leader_goes_on_with_a_lower_one(replica):
    """An epoch that the leader knows as well, so that it does not refuse it."""
    partition, damaged = replica
    partition.apply(image(OTHER, (US, OTHER), epoch=20), 1)
    sent = bytearray(batch_of(b"next", base_offset=3, partition_leader_epoch=1))
    assert partition.append_as_follower(sent) == 1
    assert damaged
    assert [(each.first_offset, each.next_offset) for each in partition.log.damages] == [(2, 3)]
    assert partition.log.leader_epochs.entries == [(1, 0)]
    assert epochs_at(partition.log, 3) == [1]
    assert partition.cut_damage() == 2
