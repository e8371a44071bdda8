"""Several of our brokers as one cluster, each a process with both roles."""

import sys
from pathlib import Path

from support.clusters import Cluster, ClusterNode
from support.processes import LOOPBACK, wait_until

_COMMAND = Path(sys.executable).parent / "headrace"
CLUSTER_ID = "b3VyLW93bi1jbHVzdGVyLQ"


class HeadraceNode(ClusterNode):
    """A node that is started the way a user starts it."""

    def command(self) -> list[str]:
        return [str(_COMMAND), "broker", str(self.write_properties())]


class HeadraceCluster(Cluster):
    """`size` nodes that are broker and controller each; node ids from 1."""

    name = "Headrace"

    def __init__(
        self, directory: Path, size: int = 3, properties: dict[str, str] | None = None
    ) -> None:
        nodes = [self._node(number, directory / str(number)) for number in range(1, size + 1)]
        super().__init__(nodes)
        copies = str(min(3, size))
        voters = ",".join(f"{node.node_id}@{node.controller_address}" for node in nodes)
        for node in nodes:
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
                "default.replication.factor": copies,
                "min.insync.replicas": "2" if size > 1 else "1",
                "offsets.topic.replication.factor": copies,
                "group.initial.rebalance.delay.ms": "0",
                "headrace.http.listener": f"{LOOPBACK}:{node.http_port}",
                **(properties or {}),
            }

    def _node(self, number: int, directory: Path) -> ClusterNode:
        """Return the node of a number; a subclass may put it elsewhere."""
        return HeadraceNode(number, directory)

    def active_controller(self) -> ClusterNode:
        """Return the running node whose log says that it became it in the latest epoch."""
        found: list[tuple[int, ClusterNode]] = []

        def is_led() -> bool:
            found[:] = [
                (int(line.rpartition("epoch=")[2].split()[0]), node)
                for node in self.nodes
                for line in (node.directory / "broker.log").read_text().splitlines()
                if 'event="became the active controller"' in line
            ]
            return bool(found) and max(found, key=_epoch)[1].is_running

        wait_until(is_led, self.ready_seconds_max, "an active controller")
        return max(found, key=_epoch)[1]


def _epoch(found: tuple[int, ClusterNode]) -> int:
    return found[0]
