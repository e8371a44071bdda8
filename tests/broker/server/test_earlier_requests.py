"""Requests behind refused ones, while what they were refused for passes: all are sent again."""

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


def lead(
    partition, leader, epoch, *, partition_epoch=None, isr=(US, OTHER), min_in_sync_replicas=1
):
    image = PartitionImage(
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=epoch if partition_epoch is None else partition_epoch,
        replicas=(US, OTHER),
        isr=isr,
    )
    partition.apply(image, min_in_sync_replicas)


def of(sequence, count, *, producer=7, epoch=0):
    return batch_of(
        *[b"v"] * count,
        producer_id=producer,
        producer_epoch=epoch,
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


def test_a_producer_that_is_new_to_a_new_leader_begins_with_its_first_record(replica, host):
    """librdkafka takes a later request's success for that of those which were refused before."""
    assert code_of(replica, of(2, 1, producer=8)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert send(replica, of(0, 2, producer=8)).first_offset == 3
    assert send(replica, of(2, 1, producer=8)).first_offset == 5
    host.time_ms = 5001
    assert send(replica, of(9, 1, producer=9)).first_offset == 6, "retention took what was before"
    assert send(replica, of(9, 1, producer=10)).first_offset == 7


def test_at_the_end_of_that_time_the_first_of_several_in_flight_comes_first(replica, host):
    """The partition knows nothing of this producer any more, as after a loss."""
    host.time_ms = 5000
    assert code_of(replica, of(6, 1, producer=8)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code_of(replica, of(7, 1, producer=8)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    host.time_ms = 5001
    assert code_of(replica, of(7, 1, producer=8)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code_of(replica, of(8, 2, producer=8)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert send(replica, of(9, 1, producer=9)).first_offset == 3, "of this one nothing was refused"
    assert send(replica, of(6, 1, producer=8)).first_offset == 4
    assert send(replica, of(7, 1, producer=8)).first_offset == 5
    assert code_of(replica, of(9, 1, producer=8)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_first_request_that_does_not_come_again_is_not_waited_for_without_end(replica, host):
    host.time_ms = 5000
    assert code_of(replica, of(6, 1, producer=8)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    host.time_ms = 35_000
    assert code_of(replica, of(7, 1, producer=8)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    host.time_ms = 35_001
    assert send(replica, of(7, 1, producer=8)).first_offset == 3
    assert send(replica, of(4, 1, producer=9)).first_offset == 4


def test_a_new_epoch_of_the_producer_begins_with_what_is_refused_first_of_it(replica, host):
    host.time_ms = 4000
    assert code_of(replica, of(6, 1, producer=8)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code_of(replica, of(9, 1, producer=8, epoch=1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    lead(replica, US, epoch=2)
    host.time_ms = 9001
    assert code_of(replica, of(10, 1, producer=8, epoch=1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert send(replica, of(9, 1, producer=8, epoch=1)).first_offset == 3


def lose_other(replica):
    lead(replica, US, epoch=1, partition_epoch=2, isr=(US,), min_in_sync_replicas=2)


def regain_other(replica):
    lead(replica, US, epoch=1, partition_epoch=3, min_in_sync_replicas=2)


def test_what_follows_a_request_that_lacked_replicas_is_refused_like_it(replica, host):
    host.time_ms = 60_000
    assert send(replica, of(3, 1)).first_offset == 3
    lose_other(replica)
    assert code_of(replica, of(4, 1)) is ErrorCode.NOT_ENOUGH_REPLICAS
    regain_other(replica)
    assert code_of(replica, of(5, 1)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert code_of(replica, of(1, 1, producer=8)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert send(replica, of(3, 1)).is_duplicate
    assert send(replica, of(4, 1)).first_offset == 4
    assert send(replica, of(5, 1)).first_offset == 5
    assert code_of(replica, of(7, 1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "a gap of its own"


def test_a_refusal_for_want_of_replicas_is_remembered_for_a_while(replica, host):
    host.time_ms = 60_000
    lose_other(replica)
    assert code_of(replica, of(3, 1)) is ErrorCode.NOT_ENOUGH_REPLICAS
    regain_other(replica)
    host.time_ms = 90_000
    assert code_of(replica, of(4, 1)) is ErrorCode.NOT_ENOUGH_REPLICAS
    host.time_ms = 90_001
    assert code_of(replica, of(4, 1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(replica, of(4, 1, producer=8)).first_offset == 3


def test_a_new_epoch_of_the_same_leader_does_not_forget_sooner(replica, host):
    host.time_ms = 60_000
    lose_other(replica)
    assert code_of(replica, of(3, 1)) is ErrorCode.NOT_ENOUGH_REPLICAS
    lead(replica, US, epoch=2, min_in_sync_replicas=2)
    host.time_ms = 90_000
    assert code_of(replica, of(4, 1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_former_epoch_is_told_so(replica):
    assert send(replica, of(0, 1, epoch=1)).first_offset == 3
    assert code_of(replica, of(3, 1)) is ErrorCode.INVALID_PRODUCER_EPOCH
