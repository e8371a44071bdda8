"""What a broker calls durable has been fsynced: the simulated disk knows."""

from pathlib import Path
from typing import Any

from simulation.cluster import Cluster, Node
from simulation.history import History
from simulation.invariants.invariant import Invariant
from simulation.invariants.logs import position_of
from simulation.invariants.partitions import name_of


class Durability(Invariant):
    """Looks at each log when its recovery point has moved."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        super().__init__(cluster, history)
        self._seen: dict[Any, tuple[int, int]] = {}

    def check_node(self, node: Node) -> None:
        """Check the replicas whose recovery points moved."""
        if not self.cluster.profile.has_fsyncs:
            return
        broker: Any = node.broker
        for partition in broker.replicas:
            log = partition.log
            point, truncations = int(log.recovery_point), log._truncations
            before = self._seen.get(partition)
            self._seen[partition] = (point, truncations)
            if before is not None and before != (point, truncations):
                self._check(node, partition, min(before[0], point), point)

    def _check(self, node: Node, partition: Any, before: int, point: int) -> None:
        segments = list(partition.log.segments)
        for place, segment in enumerate(segments):
            following = segments[place + 1].base_offset if place + 1 < len(segments) else None
            if segment.base_offset >= point or (following is not None and following <= before):
                continue
            end = position_of(segment, point)
            where = f"{name_of(node, partition)}: the recovery point is {point}, and"
            file = Path(segment.path).name
            unsynced = node.disk.unsynced_from(segment.path)
            if unsynced is not None and unsynced < end:
                self.history.violate(
                    "not-durable", f"{where} {file} has been written at {unsynced} without fsync"
                )
            if node.disk.has_unsynced_name(segment.path):
                self.history.violate("not-durable", f"{where} no fsync covers the name of {file}")
