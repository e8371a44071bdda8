"""Group commit beside what else may make a log durable, or take its files away."""

import asyncio
import shutil
from uuid import UUID

import pytest

from headrace_broker.log.config import LogConfig
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.metadata.entities import PartitionImage
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.replication.follower import EpochEnd
from headrace_broker.server.partitions.flushing import GroupCommit
from headrace_broker.server.partitions.partition import Partition
from headrace_broker.server.partitions.replica_host import ReplicaHost
from support.log import START_MS, ManualClock, batch_of


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


def test_who_waits_is_called_though_the_fsync_under_way_lost_its_files_to_a_move(
    tmp_path, monkeypatch
):
    """A follower's fetcher that is not called asks its leader for nothing any more."""
    asyncio.run(_move_during_an_fsync(tmp_path, monkeypatch))


def queue_fsyncs(monkeypatch):
    """Have fsyncs wait, and return them with the futures of their ends."""
    loop = asyncio.get_running_loop()
    queued = []

    def run_in_executor(_, work):
        future = loop.create_future()
        queued.append((work, future))
        return future

    monkeypatch.setattr(loop, "run_in_executor", run_in_executor)
    return queued


async def _move_during_an_fsync(tmp_path, monkeypatch):
    queued = queue_fsyncs(monkeypatch)
    old, new = (
        PartitionLog.open(tmp_path / folder / "t-0", LogConfig(), clock=ManualClock())
        for folder in ("a", "b")
    )
    failures = []
    group_commit = GroupCommit(old, 0, lambda: None, failures.append)
    old.append_as_follower(bytes(batch_of(b"v")))
    group_commit.appended()
    [(work, under_way)] = queued
    # The replica moves to another directory, where it has the same record, durable.
    new.append_as_follower(bytes(batch_of(b"v")))
    flush(new)
    group_commit.replace_log(new)
    old.abandon()
    shutil.rmtree(tmp_path / "a")
    new.append_as_follower(bytes(batch_of(b"w", base_offset=1)))
    waiting = asyncio.ensure_future(group_commit.wait_durable())
    await settle()
    assert not waiting.done()
    flush(new)  # the log manager's
    try:
        work()
    except Exception as error:  # noqa: BLE001 - whatever a thread would hand over
        under_way.set_exception(error)
    await settle()
    assert waiting.done()
    assert failures == []
    new.abandon()


def flush(log):
    one = log.begin_flush()
    one.run()
    log.finish_flush(one)


@pytest.mark.parametrize("cut", ["diverged", "behind the leader's start"])
def test_nobody_waits_for_the_fsync_of_what_was_truncated(tmp_path, monkeypatch, cut):
    """A fetcher would wait for ever; a producer would take others' records for its own."""

    async def run():
        queued = queue_fsyncs(monkeypatch)
        log = PartitionLog.open(tmp_path / "t-0", LogConfig(), clock=ManualClock())
        partition = Partition("t", UUID(int=7), 0, log, ReplicaHost(1))
        partition.apply(
            PartitionImage(
                leader=2, leader_epoch=1, partition_epoch=1, replicas=(1, 2), isr=(1, 2)
            ),
            1,
            unsynced_max=0,
        )
        for number in range(3):
            partition.append_as_follower(bytes(batch_of(b"v", base_offset=number)))
        told = []
        partition.when_durable(1, told.append)
        partition.when_durable(3, told.append)
        waiting = asyncio.ensure_future(partition.flushing.wait_durable())
        await settle()
        if cut == "diverged":
            partition.truncate(EpochEnd(0, 2), 0)
        else:
            partition.restart_at(0)
        refused = [error.code for error in told]
        assert refused == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * (1 if cut == "diverged" else 2)
        for number in range(log.log_end_offset, 5):
            partition.append_as_follower(bytes(batch_of(b"other", base_offset=number)))
        while queued:
            work, under_way = queued.pop()
            work()
            under_way.set_result(None)
            await settle()
        assert waiting.done()
        assert partition.durable_end == 5
        assert len(told) == 2, "each is told once"
        log.abandon()

    asyncio.run(run())


@pytest.mark.parametrize("raised_to", [None, 2])
@pytest.mark.parametrize("leads", [True, False])
def test_who_waits_for_an_fsync_is_answered_by_a_setting_that_asks_for_none(
    tmp_path, monkeypatch, raised_to, leads
):
    """Refused, a producer would send its records again; a fetcher would wait for a slow disk."""

    async def run():
        queued = queue_fsyncs(monkeypatch)
        log = PartitionLog.open(tmp_path / "t-0", LogConfig(), clock=ManualClock())
        partition = Partition("t", UUID(int=7), 0, log, ReplicaHost(1))
        image = PartitionImage(
            leader=1 if leads else 2, leader_epoch=1, partition_epoch=1, replicas=(1,), isr=(1,)
        )
        partition.apply(image, 1, unsynced_max=0)
        told = []
        for number in range(2):
            if leads:
                partition.append(batch_of(b"v"), acks=-1, now_ms=START_MS)
                partition.when_committed(number + 1, told.append)
            else:
                partition.append_as_follower(bytes(batch_of(b"v", base_offset=number)))
            partition.when_durable(number + 1, told.append)
        waiting = asyncio.ensure_future(partition.flushing.wait_durable())
        await settle()
        assert not waiting.done()
        assert not told
        partition.apply(image, 1, unsynced_max=raised_to)
        await settle()
        assert waiting.done()
        assert told == [None] * (4 if leads else 2)
        [(work, under_way)] = queued
        work()
        under_way.set_result(None)
        await settle()
        log.abandon()

    asyncio.run(run())
