"""When there is enough for a share consumer's fetch."""

import asyncio
from types import SimpleNamespace
from uuid import UUID

import pytest

from headrace_broker.coordinator.share_partition.partition import ShareLimits
from headrace_broker.coordinator.share_state.state import ShareKey, ShareState
from headrace_broker.server.clock import SystemClock
from headrace_broker.server.partitions.partition import not_leader
from headrace_broker.server.shares.share_fetch import FetchBounds, ShareFetch
from headrace_broker.server.shares.share_partition_driver import SharePartitionDriver, Status
from headrace_broker.server.shares.share_settings import ShareSettings
from support.replication import Pair
from support.waiting import until

BYTES = 1000


class Persister:
    """Has nothing of the share partition yet."""

    async def read(self, _key, _leader_epoch):
        return ShareState()

    async def write(self, _key, _change):
        pass


async def is_enough(pair, min_bytes):
    """Ask for a minimum in a share partition that begins at the log's start."""
    settings = ShareSettings(
        limits=ShareLimits(deliveries_max=5, locks_max=2000, lock_ms=30_000), reset="earliest"
    )
    key = ShareKey(group_id="g", topic_id=UUID(int=7), partition=0)
    driver = SharePartitionDriver(
        key, pair.partitions[1], Persister(), SystemClock(), lambda: settings, SimpleNamespace()
    )
    await until(lambda: driver.status is Status.ACTIVE)
    shares = SimpleNamespace(driver=lambda _group, _where: driver)
    session = SimpleNamespace(group_id="g", member_id="m", rotated=lambda: [(key.topic_id, 0)])
    bounds = FetchBounds(
        max_wait_ms=60_000,
        min_bytes=min_bytes,
        max_bytes=1 << 20,
        records_max=500,
        batch_size=500,
        is_strict=False,
    )
    fetch = ShareFetch(shares, session, bounds)
    try:
        async with asyncio.timeout(1):
            await fetch.run()
    except TimeoutError:
        return False
    finally:
        driver.close(not_leader())
    return bool(fetch.found)


@pytest.mark.parametrize(("min_bytes", "expected"), [(1, True), (5000, True), (20_000, False)])
def test_a_minimum_that_ends_within_a_batch_is_there(tmp_path, min_bytes, expected):
    """A read returns whole batches, which are less than the minimum: others follow them."""
    pair = Pair(tmp_path)
    pair.lead(1)
    pair.append_everywhere(1, 10, b"x" * BYTES)
    assert asyncio.run(is_enough(pair, min_bytes)) is expected
