"""What a share partition's leader answers, and when."""

import asyncio
from types import SimpleNamespace
from uuid import UUID

from headrace_broker.coordinator.share_partition.acknowledgement import Acknowledgement
from headrace_broker.coordinator.share_partition.partition import AcquireRequest, ShareLimits
from headrace_broker.coordinator.share_partition.states import AcknowledgeType
from headrace_broker.coordinator.share_state.state import ShareKey, ShareState
from headrace_broker.server.clock import SystemClock
from headrace_broker.server.shares.share_partition_driver import SharePartitionDriver, Status
from headrace_broker.server.shares.share_settings import ShareSettings
from support.replication import Pair
from support.waiting import until


class SlowPersister:
    """Lets no write end before it is told to."""

    def __init__(self):
        self.starts = []
        self.gates = [asyncio.Event() for _ in range(3)]

    async def read(self, _key, _leader_epoch):
        return ShareState(start_offset=0)

    async def write(self, _key, change):
        self.starts.append(change.start_offset)
        await self.gates[len(self.starts) - 1].wait()


async def answers(pair):
    """Acknowledge a record whose last lock ran out while that is being written."""
    settings = ShareSettings(
        limits=ShareLimits(deliveries_max=1, locks_max=2000, lock_ms=1), reset="earliest"
    )
    persister = SlowPersister()
    driver = SharePartitionDriver(
        ShareKey(group_id="g", topic_id=UUID(int=7), partition=0),
        pair.partitions[1],
        persister,
        SystemClock(),
        lambda: settings,
        SimpleNamespace(),
    )
    await until(lambda: driver.status is Status.ACTIVE)
    driver.fetch(AcquireRequest(member_id="a", records_max=100), 1 << 20)
    await until(lambda: persister.starts)
    late = [Acknowledgement(first=0, last=0, types=[AcknowledgeType.ACCEPT])]
    durable = driver.acknowledge("a", late)
    assert durable is not None
    persister.gates[0].set()
    await until(lambda: len(persister.starts) == 2)
    assert not durable.done()
    persister.gates[1].set()
    async with asyncio.timeout(10):
        await durable
    assert driver.acknowledge("a", late) is None
    return persister.starts


def test_a_late_acknowledgement_is_answered_when_its_record_is_durably_done_with(tmp_path):
    pair = Pair(tmp_path)
    pair.lead(1)
    pair.append_everywhere(1, 1, b"x")
    assert asyncio.run(answers(pair)) == [1, 1]
