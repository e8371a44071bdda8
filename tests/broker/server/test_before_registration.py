"""A process leads nothing before it is registered: what it was given was a former process's."""

import uuid
from dataclasses import replace

import pytest

from headrace_broker.log.config import LogConfig
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.metadata.entities import BrokerImage, PartitionImage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.server.partitions.partition import Partition
from headrace_broker.server.partitions.replica_host import ReplicaHost
from support.log import START_MS, ManualClock, batch_of

US, OTHER = 1, 2


def lead(partition, epoch):
    image = PartitionImage(
        leader=US,
        leader_epoch=epoch,
        partition_epoch=epoch,
        replicas=(US, OTHER),
        isr=(US, OTHER),
    )
    partition.apply(image, 1)


def registration(incarnation_id):
    return BrokerImage(
        node_id=US,
        epoch=7,
        incarnation_id=incarnation_id,
        endpoints=(),
        rack=None,
        fenced=False,
    )


def test_nothing_is_appended_in_an_epoch_of_the_process_before(tmp_path, monkeypatch):
    """A power cut may have taken its last records, and offsets of an epoch are given once."""
    host = ReplicaHost(US)
    monkeypatch.setattr(host, "now_ms", lambda: 0)
    host.incarnation_id = uuid.uuid4()
    former = registration(uuid.uuid4())
    host.image = replace(host.image, brokers={US: former})
    log = PartitionLog.open(tmp_path / "t-0", LogConfig(), clock=ManualClock())
    partition = Partition("t", None, 0, log, host)
    lead(partition, epoch=3)
    with pytest.raises(ApiError) as refused:
        partition.append(bytes(batch_of(b"v")), 1, START_MS)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert log.log_end_offset == 0

    registered = registration(host.incarnation_id)
    host.image = replace(host.image, brokers={US: registered})
    lead(partition, epoch=4)
    partition.append(bytes(batch_of(b"v")), 1, START_MS)
    assert log.log_end_offset == 1
    assert log.leader_epochs.entries == [(4, 0)]
    log.abandon()
