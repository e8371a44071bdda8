"""Invariants of the servers, checked while they run and when everything is quiet."""

from typing import Any

from simulation.cluster import Cluster, Node
from simulation.history import History
from simulation.quorum_checks import QuorumChecks


class Checks:
    """Remembers what may never go back, and says where it did."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        self._cluster = cluster
        self._history = history
        self._quorum = QuorumChecks(cluster, history)
        self._watermarks: dict[tuple[int, int, str, int], int] = {}
        self._leaders: dict[tuple[str, int, int], int] = {}
        self._epochs: dict[tuple[int, int, str, int], int] = {}

    def check(self) -> None:
        """Check what must hold at any moment."""
        for node in self._cluster.nodes:
            if node.broker is not None:
                self._quorum.check(node)
            if node.is_ready:
                self._check_node(node)

    def _check_node(self, node: Node) -> None:
        broker: Any = node.broker
        for partition in broker.replicas:
            place = (node.node_id, node.starts, partition.topic, partition.index)
            self._check_watermark(place, partition)
            self._check_leader(node, place, partition)

    def _check_watermark(self, place: tuple[int, int, str, int], partition: Any) -> None:
        high_watermark = partition.high_watermark
        known = self._watermarks.get(place, 0)
        if high_watermark < known:
            self._history.violate(
                "high-watermark-went-back", f"{place}: from {known} to {high_watermark}"
            )
        if high_watermark > partition.log.log_end_offset:
            self._history.violate(
                "high-watermark-above-end",
                f"{place}: {high_watermark} above {partition.log.log_end_offset}",
            )
        self._watermarks[place] = high_watermark

    def _check_leader(self, node: Node, place: tuple[int, int, str, int], partition: Any) -> None:
        if not set(partition.in_sync_replicas) <= set(partition.replicas):
            self._history.violate(
                "isr", f"{place}: {partition.in_sync_replicas} of {partition.replicas}"
            )
        epoch = partition.leader_epoch
        if epoch < self._epochs.get(place, -1):
            self._history.violate("epoch-went-back", f"{place}: to {epoch}")
        self._epochs[place] = epoch
        if partition.leader != node.node_id:
            return
        term = (partition.topic, partition.index, epoch)
        leader = self._leaders.setdefault(term, node.node_id)
        if leader != node.node_id:
            self._history.violate("two-leaders", f"{term}: both {leader} and {node.node_id} lead")

    def at_the_end(self, final: dict[tuple[str, int], dict[int, bytes]]) -> None:
        """Compare what the nodes hold when all is quiet: every replica has the same bytes."""
        for topic, index in final:
            held = {node.node_id: replica_bytes(node, topic, index) for node in self._cluster.nodes}
            shortest = min(map(len, held.values()))
            first = held[1][:shortest]
            for node_id, data in held.items():
                if data[:shortest] != first:
                    self._history.violate(
                        "replicas-differ", f"{topic}-{index}: nodes 1 and {node_id} differ"
                    )


def replica_bytes(node: Node, topic: str, index: int) -> bytes:
    """Return all batches of a node's replica, in order."""
    folder = node.disk.root / f"{topic}-{index}"
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))
