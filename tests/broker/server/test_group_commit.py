"""Group commit beside what else may make a log durable, or take its files away."""

import asyncio
import shutil

from headrace_broker.log.config import LogConfig
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.server.partitions.flushing import GroupCommit
from support.log import ManualClock, batch_of


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


def test_who_waits_is_called_though_the_fsync_under_way_lost_its_files_to_a_move(
    tmp_path, monkeypatch
):
    """A follower's fetcher that is not called asks its leader for nothing any more."""
    asyncio.run(_move_during_an_fsync(tmp_path, monkeypatch))


async def _move_during_an_fsync(tmp_path, monkeypatch):
    loop = asyncio.get_running_loop()
    queued = []

    def run_in_executor(_, work):
        future = loop.create_future()
        queued.append((work, future))
        return future

    monkeypatch.setattr(loop, "run_in_executor", run_in_executor)
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
