"""Leadership goes back and forth between two replicas that do not hear each other.

An administrator names one of two in-sync replicas the preferred leader, then the other, while the
link between them is cut for less time than makes either of them fall out of the in-sync set. Each
appends in its leader epochs what the other lacks; a third replica follows one after the other.
Meanwhile processes hear late of their fsyncs, so that logs are truncated beside them.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages import metadata
from simulation.client import FAILURES
from simulation.workloads.operators import Operator
from simulation.workloads.workload import AIMED_SINCE, STRANGERS_SINCE, Workload, is_aimed

if TYPE_CHECKING:
    from simulation.scenario import Scenario

_CUT_SECONDS = (0.3, 0.6, 1.2)
_REQUEST_SECONDS = 1.0


class Tosser:
    """One who moves leadership about faster than replicas follow."""

    name = "toss"
    cut_seconds: tuple[float, ...] = _CUT_SECONDS
    tosses = (2, 6)
    pauses: tuple[float, ...] = (0.01, 0.05, 0.15)

    def __init__(self, scenario: "Scenario") -> None:
        self._client, self.process = scenario.client(self.name)
        self._client.request_seconds = _REQUEST_SECONDS
        self._scenario = scenario
        self._operator = Operator(self._client, scenario.profile)

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Toss now and then until it is over."""
        rng = self._client.rng
        while not is_over():
            await asyncio.sleep(rng.uniform(0.1, 0.6))
            place = rng.choice(self._scenario.profile.places)
            try:
                replicas = await self._in_sync(place)
                if len(replicas) > 1 and not self._scenario.faults.is_over:
                    await self._toss(place, replicas)
            except FAILURES:
                continue

    async def _in_sync(self, place: tuple[str, int]) -> list[int]:
        """Return the replicas, those in sync first, or nothing where fewer than two are."""
        request = metadata.MetadataRequest(topics=None)
        response = await self._client.any_call(ApiKey.METADATA, request)
        for topic in response.topics:
            for partition in topic.partitions:
                if (topic.name, partition.partition_index) == place:
                    in_sync = list(partition.isr_nodes)
                    self._client.rng.shuffle(in_sync)
                    # Whoever decides must be heard by both.
                    in_sync.sort(key=self._scenario.cluster.is_active_controller)
                    others = [node for node in partition.replica_nodes if node not in in_sync]
                    return [*in_sync, *others] if len(in_sync) > 1 else []
        return []

    async def _toss(self, place: tuple[str, int], order: list[int]) -> None:
        rng, cluster = self._client.rng, self._scenario.cluster
        first, second = (cluster.nodes[number - 1] for number in order[:2])
        cluster.say(f"the leadership of {place} is tossed between {first} and {second}")
        cluster.network.block(first.host, second.host)
        cluster.network.block(second.host, first.host)
        for node in cluster.nodes:
            node.disk.late_answer_probability = 0.4
        loop = cluster.loop
        loop.call_in(loop.kernel, rng.choice(self.cut_seconds), self._heal)
        for _ in range(rng.randint(*self.tosses)):
            await self._operator.lead(place, order)
            order[0], order[1] = order[1], order[0]
            await asyncio.sleep(rng.choice(self.pauses))

    def _heal(self) -> None:
        cluster = self._scenario.cluster
        cluster.network.heal()
        for node in cluster.nodes:
            node.disk.late_answer_probability = 0.0


class SlowTosser(Tosser):
    """One who lets each leader write, so that each lacks several of the other's epochs."""

    name = "slow-toss"
    cut_seconds = (1.2, 1.7)
    tosses = (3, 5)
    pauses = (0.15, 0.25, 0.4)


def _start(scenario: "Scenario", kind: type[Tosser] = Tosser) -> list[Any]:
    if "reassign" in scenario.profile.works:
        return []  # somebody else says who has replicas
    tosser = kind(scenario)
    return [scenario.loop.start_task(tosser.process, tosser.run(scenario.is_over))]


TOSS = Workload(
    name="toss",
    share=0.3,
    since=AIMED_SINCE,
    has_seed=is_aimed,
    start=_start,
    needs=lambda profile: len(profile.brokers) > 1,
    settings=lambda _rng, _profile: {"log.flush.offset.checkpoint.interval.ms": "100"},
)
SLOW_TOSS = Workload(
    name="slow toss",
    share=0.4,
    since=STRANGERS_SINCE,
    start=lambda scenario: _start(scenario, SlowTosser),
    needs=lambda profile: len(profile.brokers) > 1,
    settings=lambda _rng, _profile: {"log.flush.offset.checkpoint.interval.ms": "100"},
)
