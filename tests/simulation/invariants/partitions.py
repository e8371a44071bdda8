"""Invariants of each replica: what may never go back, and who leads."""

from typing import Any
from uuid import UUID

from simulation.cluster import Cluster, Node
from simulation.history import History
from simulation.invariants.invariant import Invariant


class Partitions(Invariant):
    """High watermarks and leader epochs never go back; an epoch has one leader."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        super().__init__(cluster, history)
        self._watermarks: dict[Any, int] = {}
        self._leaders: dict[tuple[UUID, int, int], int] = {}
        self._epochs: dict[Any, int] = {}

    def check_node(self, node: Node) -> None:
        """Check every replica of a node."""
        broker: Any = node.broker
        for partition in broker.replicas:
            self._check_watermark(node, partition)
            self._check_leader(node, partition)

    def _check_watermark(self, node: Node, partition: Any) -> None:
        # A replica that was moved away and comes back, and one that was restarted, start over.
        high_watermark, end = partition.high_watermark, partition.log.log_end_offset
        known = self._watermarks.get(partition, 0)
        known = min(known, self.history.cuts.pop(partition, known))
        if high_watermark < known:
            self.history.violate(
                "high-watermark-went-back",
                f"{name_of(node, partition)}: from {known} to {high_watermark}",
            )
        if high_watermark > end:
            self.history.violate(
                "high-watermark-above-end",
                f"{name_of(node, partition)}: {high_watermark} above {end}",
            )
        if partition.log.log_start_offset > high_watermark:
            self.history.violate(
                "start-above-high-watermark",
                f"{name_of(node, partition)}: {partition.log.log_start_offset} above "
                f"{high_watermark}",
            )
        self._watermarks[partition] = high_watermark

    def _check_leader(self, node: Node, partition: Any) -> None:
        if not set(partition.in_sync_replicas) <= set(partition.replicas):
            self.history.violate(
                "isr",
                f"{name_of(node, partition)}: {partition.in_sync_replicas} of {partition.replicas}",
            )
        epoch = partition.leader_epoch
        if epoch < self._epochs.get(partition, -1):
            self.history.violate("epoch-went-back", f"{name_of(node, partition)}: to {epoch}")
        self._epochs[partition] = epoch
        if partition.leader != node.node_id:
            return
        term = (partition.topic_id, partition.index, epoch)
        leader = self._leaders.setdefault(term, node.node_id)
        if leader != node.node_id:
            self.history.violate(
                "two-leaders", f"{name_of(node, partition)}: {leader} leads in epoch {epoch}, too"
            )


def name_of(node: Node, partition: Any) -> str:
    """Name a replica in a violation."""
    return f"{partition.topic}-{partition.index} on {node}"
