"""Several of our brokers as one cluster, each a process with both roles."""

import sys
import time
from pathlib import Path
from typing import Self

from support.processes import LOOPBACK, ManagedProcess, free_port, wait_until
from support.wire import broker_ids

_READY_SECONDS = 30
_COMMAND = Path(sys.executable).parent / "headrace"
CLUSTER_ID = "b3VyLW93bi1jbHVzdGVyLQ"


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

    def start(self) -> None:
        """Start the process; it need not be ready."""
        path = self.directory / "broker.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        command = [str(_COMMAND), "broker", str(path)]
        self.process = ManagedProcess(command, self.directory / "broker.log")

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()

    def stop(self) -> None:
        """SIGTERM, and wait."""
        if self.process is not None:
            self.process.stop(timeout_seconds=30)

    def output_tail(self) -> str:
        return "" if self.process is None else self.process.output_tail()


class HeadraceCluster:
    """`size` nodes that are broker and controller each; node ids from 1."""

    name = "Headrace"

    def __init__(
        self, directory: Path, size: int = 3, properties: dict[str, str] | None = None
    ) -> None:
        self.nodes = [ClusterNode(number, directory / str(number)) for number in range(1, size + 1)]
        self.ready_seconds = 0.0
        voters = ",".join(f"{node.node_id}@{node.controller_address}" for node in self.nodes)
        for node in self.nodes:
            node.directory.mkdir(parents=True, exist_ok=True)
            node.settings = {
                "process.roles": "broker,controller",
                "node.id": str(node.node_id),
                "cluster.id": CLUSTER_ID,
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://{node.bootstrap},CONTROLLER://{node.controller_address}",
                "advertised.listeners": f"PLAINTEXT://{node.bootstrap}",
                "controller.listener.names": "CONTROLLER",
                "log.dirs": str(node.log_directory),
                "offsets.topic.replication.factor": str(min(3, size)),
                "group.initial.rebalance.delay.ms": "0",
                "headrace.http.listener": f"{LOOPBACK}:{node.http_port}",
                **(properties or {}),
            }

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        # All at once, as `headrace down` does: nobody waits for those that are gone.
        for node in self.nodes:
            if node.process is not None and node.process.is_running:
                node.process.kill()

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)

    def node(self, node_id: int) -> ClusterNode:
        return self.nodes[node_id - 1]

    def start(self) -> None:
        """Start all and wait until each one shows all."""
        began = time.monotonic()
        for node in self.nodes:
            node.start()
        self.wait_complete()
        self.ready_seconds = time.monotonic() - began

    def wait_complete(self, among: list[ClusterNode] | None = None) -> None:
        """Wait until the nodes (all) show one another and nobody else."""
        nodes = among or self.nodes
        ids = {node.node_id for node in nodes}
        for node in nodes:
            wait_until(
                lambda node=node: node.is_running and broker_ids(node.bootstrap) == ids,
                _READY_SECONDS,
                f"the cluster as node {node.node_id} sees it: {node.output_tail()}",
            )
