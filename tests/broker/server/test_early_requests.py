"""Requests on their way while a replica becomes leader: what was refused is sent again first."""

import pytest

from headrace_broker.log.config import LogConfig
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.metadata.entities import PartitionImage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.server.partitions.partition import Partition
from headrace_broker.server.partitions.replica_host import ReplicaHost
from support.log import START_MS, ManualClock, batch_of

US, OTHER = 1, 2


@pytest.fixture
def host(monkeypatch):
    host = ReplicaHost(US)
    host.time_ms = 0
    monkeypatch.setattr(host, "now_ms", lambda: host.time_ms)
    return host


@pytest.fixture
def replica(tmp_path, host):
    """A replica that followed, has sequences 0 to 2 of a producer, and has just begun to lead."""
    log = PartitionLog.open(tmp_path / "t-0", LogConfig(), clock=ManualClock())
    partition = Partition("t", None, 0, log, host)
    lead(partition, OTHER, epoch=0)
    log.append_as_follower(bytes(of(0, 3)))
    with pytest.raises(ApiError) as refused:
        send(partition, of(3, 1))
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    lead(partition, US, epoch=1)
    yield partition
    log.abandon()


def lead(partition, leader, epoch):
    image = PartitionImage(
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=epoch,
        replicas=(US, OTHER),
        isr=(US, OTHER),
    )
    partition.apply(image, 1)


def of(sequence, count):
    return batch_of(
        *[b"v"] * count,
        producer_id=7,
        producer_epoch=0,
        base_sequence=sequence,
    )


def send(partition, batch):
    return partition.append(bytes(batch), -1, START_MS)


def code_of(partition, batch):
    with pytest.raises(ApiError) as refused:
        send(partition, batch)
    return refused.value.code


def test_what_follows_a_refused_request_is_refused_like_it_and_nothing_is_doubled(replica):
    """OUT_OF_ORDER_SEQUENCE_NUMBER makes librdkafka begin a new epoch, with sequences 0 to 2."""
    assert code_of(replica, of(4, 2)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert send(replica, of(0, 3)).is_duplicate
    assert send(replica, of(3, 1)).first_offset == 3
    assert send(replica, of(4, 2)).first_offset == 4


def test_a_gap_behind_what_this_leader_took_is_a_gap(replica):
    send(replica, of(3, 1))
    assert code_of(replica, of(5, 1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_that_stays_is_a_gap(replica, host):
    host.time_ms = 5000
    assert code_of(replica, of(4, 2)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    host.time_ms = 5001
    assert code_of(replica, of(4, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
