"""What tests and the benchmark do to several brokers that form one cluster, ours or Apache Kafka's.

Owns the nodes' processes: starting, ending, pausing, and asking the cluster who leads.
"""

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from kio.schema.describe_quorum.v2 import request as quorum
from kio.schema.metadata.v4.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import TopicName
from kio.static.primitive import i32

from support.processes import LOOPBACK, ManagedProcess, free_port, wait_until
from support.wire import RawConnection, broker_ids

_ASK_SECONDS = 2
NO_LEADER = -1
QUORUM = quorum.DescribeQuorumRequest(
    topics=(
        quorum.TopicData(
            topic_name=TopicName("__cluster_metadata"),
            partitions=(quorum.PartitionData(partition_index=i32(0)),),
        ),
    )
)


class ClusterNode:
    """One node: its directory, its ports, which it keeps, and its process."""

    def __init__(self, node_id: int, directory: Path) -> None:
        self.node_id = node_id
        self.directory = directory
        self.log_directory = directory / "data"
        self.port, self.controller_port, self.http_port = free_port(), free_port(), free_port()
        self.settings: dict[str, str] = {}
        self.process: ManagedProcess | None = None

    @property
    def bootstrap(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def controller_address(self) -> str:
        return f"{LOOPBACK}:{self.controller_port}"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_running

    def write_properties(self) -> Path:
        """Write the settings to the file that the process reads at its start."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / "broker.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        return path

    def command(self) -> list[str]:
        """Return the command line of this node."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the process; it need not be ready."""
        self.process = ManagedProcess(self.command(), self.directory / "broker.log")

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()

    def stop(self) -> None:
        """SIGTERM, and wait."""
        if self.process is not None:
            self.process.stop(timeout_seconds=30)

    def request_stop(self) -> None:
        """SIGTERM, without waiting for the end."""
        self._signal(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP: it holds its connections and says nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def output_tail(self) -> str:
        return "" if self.process is None else self.process.output_tail()


@dataclass(frozen=True, kw_only=True)
class PartitionState:
    """A partition as a node's metadata shows it."""

    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


def _is_whole(partitions: dict[int, PartitionState]) -> bool:
    return bool(partitions) and all(
        p.leader != NO_LEADER and sorted(p.isr) == sorted(p.replicas) for p in partitions.values()
    )


class Cluster:
    """Nodes with ids from 1, each broker and controller; subclasses say how one is started."""

    name: str
    ready_seconds_max = 60.0

    def __init__(self, nodes: list[ClusterNode]) -> None:
        self.nodes = nodes
        self.ready_seconds = 0.0
        self.not_asked: tuple[ClusterNode, ...] = ()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)

    @property
    def log_directory(self) -> Path:
        return self.nodes[0].log_directory

    @property
    def is_running(self) -> bool:
        return all(node.is_running for node in self.nodes)

    def node(self, node_id: int) -> ClusterNode:
        return self.nodes[node_id - 1]

    def others(self, *gone: ClusterNode) -> list[ClusterNode]:
        return [node for node in self.nodes if node not in gone]

    def start(self) -> None:
        """Start all and wait until each one shows all."""
        began = time.monotonic()
        for node in self.nodes:
            node.start()
        self.wait_complete()
        self.ready_seconds = time.monotonic() - began

    def restart(self) -> None:
        """Start all again with the data and ports they had."""
        self.start()

    def stop(self) -> None:
        """SIGTERM to all at once, and wait."""
        for node in self.nodes:
            if node.is_running:
                node.resume()
                node.request_stop()
        for node in self.nodes:
            node.stop()

    def kill(self) -> None:
        """SIGKILL to all at once."""
        for node in self.nodes:
            if node.is_running:
                node.kill()

    def make_whole(self) -> None:
        """Start the nodes that are not running, and wait until all show one another."""
        for node in self.nodes:
            if not node.is_running:
                node.start()
        self.wait_complete()

    def wait_complete(self, among: Iterable[ClusterNode] | None = None) -> None:
        """Wait until the nodes (all) show one another and nobody else."""
        nodes = list(among or self.nodes)
        ids = {node.node_id for node in nodes}
        for node in nodes:
            # Asked once: a node that was killed may be shown until its end is noticed, and again.
            is_complete = False
            with suppress(TimeoutError):
                wait_until(
                    lambda node=node: not node.is_running or broker_ids(node.bootstrap) == ids,
                    self.ready_seconds_max,
                )
                is_complete = node.is_running
            if not is_complete:
                raise TimeoutError(f"node {node.node_id} never saw {ids}:\n{node.output_tail()}")

    def _answers(self, request: Any) -> Iterator[Any]:
        """The answers of the nodes that run and answer, in turn."""
        for node in self.nodes:
            if not node.is_running or node in self.not_asked:
                continue
            try:
                with RawConnection(node.bootstrap, _ASK_SECONDS) as link:
                    answer = link.call(request)
            except (OSError, ValueError):
                continue
            yield answer

    def _ask(self, request: Any) -> Any | None:
        """The answer of the first node that answers."""
        return next(self._answers(request), None)

    def partitions(self, topic: str) -> dict[int, PartitionState]:
        """Return the topic's partitions as the first node that answers sees them."""
        return next(self._views(topic), {})

    def _views(self, topic: str) -> Iterator[dict[int, PartitionState]]:
        """The topic's partitions as each node that answers sees them."""
        wanted = (MetadataRequestTopic(name=TopicName(topic)),)
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        return map(self._partitions_of, self._answers(request))

    @staticmethod
    def _partitions_of(response: Any) -> dict[int, PartitionState]:
        return {
            int(partition.partition_index): PartitionState(
                leader=int(partition.leader_id),
                replicas=tuple(map(int, partition.replica_nodes)),
                isr=tuple(map(int, partition.isr_nodes)),
            )
            for found in response.topics
            for partition in found.partitions
        }

    def leader(self, topic: str, partition: int = 0) -> ClusterNode:
        """Return the leader of a partition, waiting while there is none."""
        leaders: list[int] = []

        def is_led() -> bool:
            found = self.partitions(topic).get(partition)
            leaders[:] = [] if found is None or found.leader == NO_LEADER else [found.leader]
            return bool(leaders)

        wait_until(is_led, self.ready_seconds_max, f"a leader of {topic}-{partition}")
        return self.node(leaders[0])

    def wait_in_sync(self, topic: str, seconds: float = 30) -> None:
        """Wait until every replica of the topic is in sync and has a leader, as all nodes see it.

        One that was cut off may still take itself for a leader with everybody in sync.
        """

        def is_in_sync() -> bool:
            views = list(self._views(topic))
            return bool(views) and all(view == views[0] and _is_whole(view) for view in views)

        try:
            wait_until(is_in_sync, seconds)
        except TimeoutError:
            raise TimeoutError(f"not in sync after {seconds} s: {self.partitions(topic)}") from None

    def active_controller(self) -> ClusterNode:
        """Return the leader of the metadata quorum (DescribeQuorum, KIP-595)."""
        leaders: list[int] = []

        def is_led() -> bool:
            response = self._ask(QUORUM)
            topics = () if response is None else response.topics
            states = [p for topic in topics for p in topic.partitions]
            leaders[:] = [int(p.leader_id) for p in states if int(p.error_code) == 0]
            return bool(leaders) and leaders[0] != NO_LEADER

        wait_until(is_led, self.ready_seconds_max, "an active controller")
        return self.node(leaders[0])

    def cpu_seconds(self) -> float:
        return sum(n.process.cpu_seconds() for n in self.nodes if n.process and n.is_running)

    def rss_bytes(self) -> int:
        return sum(n.process.rss_bytes() for n in self.nodes if n.process and n.is_running)

    def read_bytes(self) -> int:
        return sum(n.process.read_bytes() for n in self.nodes if n.process and n.is_running)
