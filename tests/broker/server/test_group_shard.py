"""A partition of groups whose records are being written while it is closed, or loaded again."""

import asyncio
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from headrace_broker.coordinator.config import GroupConfig
from headrace_broker.coordinator.decision import GroupDecision
from headrace_broker.coordinator.records import GroupRecord, OffsetRecord
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.records.group_metadata import (
    GroupMetadataKey,
    GroupMetadataValue,
)
from headrace_broker.protocol.messages.records.offset_commit import (
    OffsetCommitKey,
    OffsetCommitValue,
)
from headrace_broker.server.clock import SystemClock
from headrace_broker.server.groups import group_driver_shard
from headrace_broker.server.groups.group_driver_shard import ShardDriver, ShardStatus
from support.waiting import until

RECORD_BYTES_MAX = 500
OFFSET = OffsetRecord(
    key=OffsetCommitKey(group="g", topic="t", partition=0), value=OffsetCommitValue(offset=1)
)
TOO_LARGE = GroupRecord(
    key=GroupMetadataKey(group="g"),
    value=GroupMetadataValue(protocol_type="x" * RECORD_BYTES_MAX),
)


class _Log:
    """An empty partition whose appends, and commits, end when they are told to."""

    end_offset = 7
    record_bytes_max = RECORD_BYTES_MAX

    def __init__(self):
        self.appended = asyncio.Event()
        self.committed = asyncio.Event()
        self.committed.set()

    async def append(self, _):
        await self.appended.wait()

    async def wait_committed(self, _):
        await self.committed.wait()

    async def read_all(self):
        for chunk in ():
            yield chunk


async def _driver():
    driver = ShardDriver(
        0,
        _Log(),
        GroupConfig(),
        SystemClock(),
        lambda _: SimpleNamespace(config=None),
        lambda _: pytest.fail("no share group is here"),
    )
    await driver.load()
    await until(lambda: driver._writer is None)
    return driver


def test_a_partition_that_is_closed_by_what_it_writes_stays_closed():
    """Its directory failed under a transaction's offsets, say: another broker is asked then."""

    async def run():
        driver = await _driver()

        async def fail():
            driver.close()
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the log directory failed")

        with capture_logs() as said, pytest.raises(ApiError) as refused:
            await driver.take_turn(str, fail)
        await until(lambda: driver._writer is None)
        await asyncio.sleep(0)
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
        assert driver.status is ShardStatus.CLOSED
        assert driver._reloader is None
        assert said == []

    asyncio.run(run())


def test_what_was_loaded_again_is_told_of_when_it_is_committed(monkeypatch):
    """An append that began before does not stand for the wait."""
    monkeypatch.setattr(group_driver_shard, "_RELOAD_DELAY_S", 0)

    async def run():
        driver = await _driver()
        driver.expect_nothing(GroupDecision(records=[OFFSET]))
        await asyncio.sleep(0)
        driver.log.committed.clear()
        driver.expect_nothing(GroupDecision(records=[TOO_LARGE]))
        assert driver.status is ShardStatus.LOADING
        await until(lambda: driver.status is ShardStatus.ACTIVE)
        asked = asyncio.ensure_future(
            driver.submit(str, lambda ticket: GroupDecision(replies=[(ticket, "told")]))
        )
        driver.log.appended.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not asked.done()
        driver.log.committed.set()
        assert await asyncio.wait_for(asked, 5) == "told"
        driver.close()

    asyncio.run(run())
