"""Replicas move between the log directories of their brokers, forth and back, under load."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import alter_replica_log_dirs as messages
from simulation.client import FAILURES, Client
from simulation.retries import RETRIABLE
from simulation.workloads.workload import Workload

if TYPE_CHECKING:
    from simulation.cluster import Node
    from simulation.scenario import Scenario

SINCE = 2_000_000
NAME = "directories"
# A directory may be offline, and a broker may not have the replica yet, or any more.
_EXPECTED = RETRIABLE | {
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}


class Mover:
    """One who moves replicas."""

    def __init__(
        self, client: Client, nodes: "list[Node]", partitions: list[tuple[str, int]]
    ) -> None:
        self._client = client
        self._nodes = nodes
        self._partitions = partitions

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Ask for moves now and then until it is over."""
        rng = self._client.rng
        while not is_over():
            await asyncio.sleep(rng.expovariate(6))
            node = rng.choice(self._nodes)
            topic, partition = rng.choice(self._partitions)
            path = rng.choice(node.log_directories)
            try:
                await self._move(node, str(path), topic, partition)
            except FAILURES:
                continue

    async def _move(self, node: "Node", path: str, topic: str, partition: int) -> None:
        client = self._client
        caller = await client.caller(node.address)
        asked = messages.AlterReplicaLogDirTopic(name=topic, partitions=[partition])
        directory = messages.AlterReplicaLogDir(path=path, topics=[asked])
        request = messages.AlterReplicaLogDirsRequest(dirs=[directory])
        response = await client.call(caller, ApiKey.ALTER_REPLICA_LOG_DIRS, request)
        code = ErrorCode(response.results[0].partitions[0].error_code)
        if code is ErrorCode.NONE:
            client.history.reach("a move between directories is asked for")
        elif code not in _EXPECTED:
            client.history.violate("directories", f"{topic}-{partition}: {code.name}")


def _start(scenario: "Scenario") -> list[Any]:
    client, process = scenario.client("directories")
    nodes = [node for node in scenario.cluster.nodes if node.is_broker]
    mover = Mover(client, nodes, scenario.profile.places)
    return [scenario.loop.start_task(process, mover.run(scenario.is_over))]


DIRECTORIES = Workload(name=NAME, share=0.5, since=SINCE, start=_start)
