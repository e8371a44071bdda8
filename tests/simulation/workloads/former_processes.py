"""Brokers' former processes that are heard late, and a member that is a generation behind.

What they ask for would be right of the process that is registered now. It must be refused, and
what is done of it is judged where it is decided (`invariants.decisions`, `invariants.admissions`).
They know what the nodes know: an epoch one below a registration's is nobody's any more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import API_TABLE, ApiKey
from headrace_broker.protocol.messages import (
    alter_partition,
    broker_heartbeat,
    fetch,
    heartbeat,
)
from simulation.client import FAILURES, Client
from simulation.workloads.operators import CONTROLLER_PORT
from simulation.workloads.workload import Workload

if TYPE_CHECKING:
    from simulation.cluster import Cluster, Node
    from simulation.scenario import Scenario

_NO_SESSION, _FULL = 0, -1


class FormerProcesses:
    """One after the other, each of some broker."""

    def __init__(self, client: Client, cluster: "Cluster") -> None:
        self._client = client
        self._cluster = cluster

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Speak until it is over."""
        rng = self._client.rng
        while not is_over():
            await asyncio.sleep(rng.expovariate(6))
            ready = [node for node in self._cluster.nodes if node.broker and node.is_ready]
            if not ready:
                continue
            speak = rng.choice(self._words())
            try:
                await speak(rng.choice(ready))
            except FAILURES:
                continue

    def _words(self) -> Sequence[Callable[["Node"], Awaitable[None]]]:
        return (self._fetch, self._fetch, self._beat, self._alter, self._member)

    def _led(self, node: "Node") -> Any | None:
        """Return a partition that a node leads, with followers."""
        partitions = [
            partition
            for topic in self._cluster.profile.topics
            for partition in node.broker.replicas.partitions_of(topic).values()
            if partition.leading is not None and partition.leading.followers
        ]
        return self._client.rng.choice(partitions) if partitions else None

    async def _fetch(self, node: "Node") -> None:
        """Say that a follower has all of a log, in the words of its former process."""
        partition = self._led(node)
        if partition is None:
            return
        follower = self._client.rng.choice(sorted(partition.leading.followers))
        registered = partition.host.image.brokers.get(follower)
        if registered is None:
            return
        log = partition.log
        asked = fetch.FetchPartition(
            partition=partition.index,
            current_leader_epoch=partition.leader_epoch,
            fetch_offset=log.log_end_offset,
            last_fetched_epoch=log.leader_epochs.latest,
            log_start_offset=log.log_start_offset,
            partition_max_bytes=1,
        )
        topic = fetch.FetchTopic(
            topic=partition.topic, topic_id=partition.topic_id, partitions=[asked]
        )
        request = fetch.FetchRequest(
            replica_state=fetch.ReplicaState(
                replica_id=follower, replica_epoch=registered.epoch - 1
            ),
            max_wait_ms=0,
            session_id=_NO_SESSION,
            session_epoch=_FULL,
            topics=[topic],
        )
        caller, _ = await self._client.leader(partition.topic, partition.index)
        await self._client.call(caller, ApiKey.FETCH, request, API_TABLE[ApiKey.FETCH].max_version)
        self._client.history.reach("a former process fetches as if it had everything")

    async def _beat(self, node: "Node") -> None:
        """Keep a broker alive, or let it end, or serve before it has read its registration."""
        rng, image = self._client.rng, node.broker.metadata
        if not image.brokers:
            return
        broker = image.brokers[rng.choice(sorted(image.brokers))]
        is_former = not broker.fenced or rng.random() < 0.5
        request = broker_heartbeat.BrokerHeartbeatRequest(
            broker_id=broker.node_id,
            broker_epoch=broker.epoch - is_former,
            current_metadata_offset=broker.epoch - 1 + is_former,
            want_fence=is_former and rng.random() < 0.3,
            want_shut_down=is_former and rng.random() < 0.3,
        )
        await self._tell_controller(ApiKey.BROKER_HEARTBEAT, request)

    async def _alter(self, node: "Node") -> None:
        """Take the in-sync set that a broker leads for its own alone."""
        partition = self._led(node)
        image = node.broker.metadata
        broker = None if partition is None else image.brokers.get(partition.leader)
        if partition is None or broker is None:
            return
        data = alter_partition.AlterPartitionRequestPartitionData(
            partition_index=partition.index,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr_with_epochs=[
                alter_partition.BrokerState(broker_id=broker.node_id, broker_epoch=broker.epoch)
            ],
        )
        topic = alter_partition.AlterPartitionRequestTopicData(
            topic_id=partition.topic_id, partitions=[data]
        )
        request = alter_partition.AlterPartitionRequest(
            broker_id=broker.node_id, broker_epoch=broker.epoch - 1, topics=[topic]
        )
        await self._tell_controller(ApiKey.ALTER_PARTITION, request)

    async def _tell_controller(self, key: ApiKey, request: Any) -> None:
        for node in self._cluster.nodes:
            controller = getattr(node.broker, "controller", None)
            if node.is_running and getattr(controller, "is_active", False):
                caller = await self._client.caller((node.host, CONTROLLER_PORT))
                await self._client.call(caller, key, request, API_TABLE[key].max_version)
                self._client.history.reach("a former process speaks to the controller")
                return

    async def _member(self, node: "Node") -> None:
        """Keep a member's place by the generation before its own."""
        shards = node.broker.groups._shards.values()
        known = [
            (name, group.generation, member)
            for shard in shards
            for name, group in sorted(shard.shard.groups.items())
            for member in sorted(group.members)
        ]
        if not known:
            return
        name, generation, member = self._client.rng.choice(known)
        request = heartbeat.HeartbeatRequest(
            group_id=name, generation_id=generation - 1, member_id=member
        )
        caller = await self._client.coordinator(name)
        if caller is not None:
            await self._client.call(caller, ApiKey.HEARTBEAT, request)
            self._client.history.reach("a member beats in a former generation")


def _start(scenario: "Scenario") -> list[Any]:
    client, process = scenario.client("former")
    former = FormerProcesses(client, scenario.cluster)
    return [scenario.loop.start_task(process, former.run(scenario.is_over))]


FORMER_PROCESSES = Workload(
    name="former processes",
    share=0.5,
    since=3_000_000,
    start=_start,
    needs=lambda profile: len(profile.brokers) > 1,
)
