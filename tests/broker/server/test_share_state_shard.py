"""The driver of share groups' state: answers wait for the log, and a refused append forgets."""

import asyncio
import functools
from uuid import UUID

import pytest

from headrace_broker.coordinator.share_state.shard import (
    StateChange,
    decide_delete,
    decide_initialize,
    decide_read,
    decide_write,
)
from headrace_broker.coordinator.share_state.state import ShareKey, ShareState
from headrace_broker.log.batches import iterate_headers
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.server.clock import SystemClock
from headrace_broker.server.shares.state_shard import StateShardDriver

KEY = ShareKey(group_id="g", topic_id=UUID(int=7), partition=0)
OTHER = ShareKey(group_id="h", topic_id=UUID(int=7), partition=0)


def in_a_loop(test):
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run():
        asyncio.run(asyncio.wait_for(test(), 30))

    return run


class Log:
    """A partition's log in memory, which commits when the test says so."""

    def __init__(self):
        self.batches = []
        self.end_offset = 0
        self.deleted_below = 0
        self.is_committed = True
        self.refuses = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def append(self, batch):
        if self.refuses:
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
        await self.gate.wait()
        first = self.end_offset
        data = bytearray(batch)
        data[:8] = first.to_bytes(8, "big")
        self.batches.append(bytes(data))
        self.end_offset += sum(header.record_count for _, header in iterate_headers(batch))
        return first

    async def read_all(self):
        for batch in self.batches:
            yield batch

    async def wait_committed(self):
        await self.gate.wait()

    def delete_below(self, offset):
        self.deleted_below = offset


async def driver_of(log):
    driver = StateShardDriver(0, log, SystemClock())
    driver.load()
    await until_active(driver)
    return driver


async def until_active(driver):
    while True:
        try:
            driver.check_active()
        except ApiError:
            await asyncio.sleep(0.01)
        else:
            return


def initialize(key, epoch=1):
    return lambda shard: (decide_initialize(shard, key, epoch, 0, 0), key)


def write(key, start):
    change = StateChange(state_epoch=1, leader_epoch=0, start_offset=start, complete_count=0)
    return lambda shard: (decide_write(shard, key, change, 0, 3), start)


@in_a_loop
async def test_an_answer_waits_for_the_commit_and_so_does_a_read_behind_it():
    log = Log()
    driver = await driver_of(log)
    log.gate.clear()
    written = asyncio.create_task(driver.submit(initialize(KEY)))
    read = asyncio.create_task(driver.submit(lambda shard: ([], shard.states[KEY])))
    done, _ = await asyncio.wait([written, read], timeout=0.05)
    assert not done, "nobody hears of what may yet be lost"
    log.gate.set()
    assert await written == KEY
    assert (await read).state_epoch == 1
    driver.close()


@in_a_loop
async def test_what_was_loaded_is_told_only_when_it_is_committed():
    log = Log()
    driver = await driver_of(log)
    await driver.submit(initialize(KEY))
    driver.close()
    log.gate.clear()  # its leader is new, and most replicas do not have its end
    successor = StateShardDriver(0, log, SystemClock())
    successor.load()
    await asyncio.sleep(0.05)
    with pytest.raises(ApiError) as error:
        successor.check_active()
    assert error.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    log.gate.set()
    await until_active(successor)
    assert (await successor.submit(lambda shard: ([], shard.states[KEY]))).state_epoch == 1
    successor.close()


@in_a_loop
async def test_a_leader_is_not_told_of_no_state_by_a_coordinator_that_was_replaced():
    """Its log may lack what its successor has answered with success."""
    log = Log()
    driver = await driver_of(log)

    def read(leader_epoch):
        return driver.submit(
            lambda shard: (
                decide_read(shard, KEY, leader_epoch, 0),
                shard.states.get(KEY, ShareState()),
            )
        )

    log.refuses = True
    with pytest.raises(ApiError) as error:
        await read(4)
    assert error.value.code is ErrorCode.NOT_COORDINATOR
    log.refuses = False
    await until_active(driver)
    assert await read(4) == ShareState(), "its leader epoch is in the log, so it still leads"
    assert log.end_offset == 1
    again = await driver_of(log)
    assert again.shard.states[KEY].leader_epoch == 4
    driver.close()
    again.close()


@in_a_loop
async def test_a_deletion_is_not_confirmed_by_a_coordinator_that_was_replaced():
    """Where it knows no state its successor may have some."""
    log = Log()
    driver = await driver_of(log)
    log.refuses = True
    with pytest.raises(ApiError) as error:
        await driver.submit(lambda _shard: (decide_delete(KEY), None))
    assert error.value.code is ErrorCode.NOT_COORDINATOR
    driver.close()


@in_a_loop
async def test_a_refused_append_is_forgotten_and_the_log_is_read_again():
    log = Log()
    driver = await driver_of(log)
    await driver.submit(initialize(KEY))
    await driver.submit(write(KEY, 5))
    log.refuses = True
    with pytest.raises(ApiError) as error:
        await driver.submit(write(KEY, 9))
    assert error.value.code is ErrorCode.NOT_COORDINATOR
    log.refuses = False
    await until_active(driver)
    state = await driver.submit(lambda shard: ([], shard.states[KEY]))
    assert state.start_offset == 5
    driver.close()


@in_a_loop
async def test_nothing_is_deleted_for_a_snapshot_that_may_yet_be_lost():
    log = Log()
    driver = await driver_of(log)
    await driver.submit(initialize(KEY))
    await driver.submit(initialize(KEY, epoch=2))
    driver.close()
    log.is_committed = False  # a new leader has it, and most replicas do not
    driver = await driver_of(log)
    await driver.prune()
    assert log.deleted_below == 0
    log.is_committed = True
    await driver.prune()
    assert log.deleted_below == 1
    driver.close()


@in_a_loop
async def test_what_no_snapshot_needs_is_deleted_and_nothing_else():
    log = Log()
    driver = await driver_of(log)
    await driver.submit(initialize(KEY))
    await driver.submit(initialize(OTHER))
    for start in range(1, 9):
        await driver.submit(write(KEY, start))
    await driver.prune()
    assert log.deleted_below == 1, "the other one's snapshot"
    await driver.refresh(0)
    await driver.prune()
    assert log.deleted_below == log.end_offset - 2
    again = await driver_of(log)
    assert again.shard.states == driver.shard.states
    assert again.shard.snapshot_offsets == driver.shard.snapshot_offsets
    driver.close()
    again.close()
