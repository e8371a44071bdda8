"""Readers of what a disk has damaged, before anybody has looked for it.

Where a disk rots, its broker is made the leader of what it has damaged as soon as it is in sync
again, and a consumer begins to read there.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import metadata
from simulation.client import FAILURES
from simulation.workloads.consumers import Consumer, Key
from simulation.workloads.operators import Operator
from simulation.workloads.workload import AIMED_SINCE, Workload, is_aimed

if TYPE_CHECKING:
    from simulation.scenario import Scenario

_LOOK_SECONDS = 0.05
_LEADS_SECONDS = 2.5
_POLLS_MAX = 10
_REQUEST_SECONDS = 1.0


class _Reader(Consumer):
    """Reads where damage is; what was damaged may have been cut off before anybody had it."""

    async def _failed(self, key: Key, code: ErrorCode) -> None:
        history = self.client.history
        known = history.logs.get(key, {})
        is_outside = code is ErrorCode.OFFSET_OUT_OF_RANGE and not history.may_begin_later
        if is_outside and self.positions[key] > max(known, default=-1):
            self.client.heard(*key, code)
            self.client.forget(*key)
            return
        await super()._failed(key, code)


class DamageReader:
    """Waits for damage, and reads it."""

    def __init__(self, scenario: "Scenario", node_id: int) -> None:
        self._client, self.process = scenario.client("damage")
        self._client.request_seconds = _REQUEST_SECONDS
        self._operator = Operator(self._client, scenario.profile)
        self._node_id = node_id
        self._cluster = scenario.cluster
        self._damaged = scenario.cluster.damaged
        self._seen = self._readers = 0

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Read what is damaged from now on, until it is over."""
        loop = asyncio.get_running_loop()
        pending: list[tuple[tuple[str, int], int, float]] = []
        while not is_over():
            await asyncio.sleep(_LOOK_SECONDS)
            for place, offset in self._damaged[self._seen :]:
                pending.append((place, offset, loop.time() + _LEADS_SECONDS))
            self._seen = len(self._damaged)
            for item in list(pending):
                place, offset, deadline = item
                if await self._leads(place):
                    await self._read(place, offset)
                elif loop.time() < deadline:
                    continue
                pending.remove(item)
            if not pending:
                self._cluster.damage_read = self._seen

    async def _leads(self, place: tuple[str, int]) -> bool:
        """Have the broker lead a partition that it has damaged; return whether it does."""
        try:
            partition = await self._partition(place)
            if partition is None or self._node_id not in partition.isr_nodes:
                return False
            if partition.leader_id != self._node_id:
                others = [node for node in partition.replica_nodes if node != self._node_id]
                await self._operator.lead(place, [self._node_id, *others])
                return False
        except FAILURES:
            return False
        return True

    async def _partition(self, place: tuple[str, int]) -> Any:
        request = metadata.MetadataRequest(topics=None)
        response = await self._client.any_call(ApiKey.METADATA, request)
        return next(
            (
                partition
                for topic in response.topics
                for partition in topic.partitions
                if (topic.name, partition.partition_index) == place
            ),
            None,
        )

    async def _read(self, place: tuple[str, int], offset: int) -> None:
        """Begin at the batch that is damaged; what comes after it says that it was mended."""
        self._client.forget(*place)
        self._readers += 1
        consumer = _Reader(self._client, f"damage-{self._readers}", [place])
        consumer.positions[place] = offset
        for _ in range(_POLLS_MAX):
            if await consumer.poll(max_wait_ms=0) >= 0:
                return


def _start(scenario: "Scenario") -> list[Any]:
    node = scenario.cluster.rotting
    if node is None:
        return []
    reader = DamageReader(scenario, node.node_id)
    return [scenario.loop.start_task(reader.process, reader.run(scenario.is_over))]


DAMAGE = Workload(
    name="damage",
    share=0.8,
    since=AIMED_SINCE,
    has_seed=is_aimed,
    start=_start,
    needs=lambda profile: len(profile.brokers) > 1,
)
