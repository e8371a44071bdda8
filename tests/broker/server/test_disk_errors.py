"""Errors of a disk on the way of clients, groups and replicas: reported once, and typed."""

import asyncio
import os

import pytest

from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.server.groups.group_driver_log import PartitionOffsetsLog
from support.log import START_MS, ManualClock, batch_of
from support.replication import Pair


@pytest.fixture
def leader(tmp_path):
    """A leader with two batches, the last in memory, a disk that refuses, and what it reported."""
    pair = Pair(tmp_path, min_isr=1)
    pair.lead(1, isr=(1,))
    pair.append(1, b"a")
    pair.append(1, b"b")
    partition = pair.partitions[1]
    # The replica is alone in its in-sync set: what is appended is committed.
    assert partition.high_watermark == 2
    reported = []

    def on_failure(failure):
        reported.append(failure)
        partition.close(ApiError(ErrorCode.KAFKA_STORAGE_ERROR))

    partition.host.on_failure = on_failure
    path = partition.log.segments.active.path
    partition.log.segments.active.close()
    path.unlink()
    path.symlink_to("/proc/self/mem")  # reads and writes at position 0 fail with EIO
    yield partition, reported
    path.unlink()


def test_an_append_is_answered_with_a_storage_error(leader):
    partition, reported = leader
    with pytest.raises(ApiError) as caught:
        partition.append(batch_of(b"b"), 1, START_MS)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert [type(each) for each in reported] == [LogDirectoryFailure]
    with pytest.raises(ApiError) as caught:
        partition.append(batch_of(b"b"), 1, START_MS)
    assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_read_is_answered_with_a_storage_error(leader):
    partition, reported = leader
    with pytest.raises(ApiError) as caught:
        partition.read(0, 1000, isolation=0, at_least_one=True)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(reported) == 1


@pytest.mark.parametrize("timestamp", [START_MS, None])
def test_a_search_for_a_time_is_answered_with_a_storage_error(leader, timestamp):
    partition, reported = leader
    with pytest.raises(ApiError) as caught:
        partition.find_timestamp(timestamp)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(reported) == 1


def test_groups_that_cannot_be_read_do_not_stop_their_broker(leader):
    partition, reported = leader

    async def read():
        return [chunk async for chunk in PartitionOffsetsLog(partition, ManualClock()).read_all()]

    with pytest.raises(ApiError) as caught:
        asyncio.run(read())
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(reported) == 1


def test_the_disk_of_these_tests_does_refuse():
    fd = os.open("/proc/self/mem", os.O_RDWR)
    with pytest.raises(OSError, match="Input/output"):
        os.pread(fd, 10, 0)
    os.close(fd)
