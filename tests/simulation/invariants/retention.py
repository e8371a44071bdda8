"""What vanishes from a log's beginning vanishes by right: a request's, or retention's."""

from typing import Any
from uuid import UUID

from simulation.cluster import Cluster, Node
from simulation.history import History
from simulation.invariants.invariant import Invariant
from simulation.invariants.partitions import name_of

Place = tuple[UUID, int]


class Retention(Invariant):
    """Approves each log start once, where it moves first; other replicas follow it."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        super().__init__(cluster, history)
        self._approved: dict[Place, int] = {}

    def check_node(self, node: Node) -> None:
        """Check the log starts of a node."""
        broker: Any = node.broker
        for partition in broker.replicas:
            place = (partition.topic_id, int(partition.index))
            start = int(partition.log.log_start_offset)
            approved = self._approved.get(place, 0)
            if start <= approved:
                continue
            self._approved[place] = start
            key = (partition.topic, int(partition.index))
            self.history.begins[key] = start
            asked = self.history.trims.get(key, 0)
            if start > asked and not self._has_right(node, partition, approved, start):
                self.history.violate(
                    "vanished",
                    f"{name_of(node, partition)}: the log begins at {start}, it began at "
                    f"{approved}; up to {asked} was asked to go",
                )

    def _has_right(self, node: Node, partition: Any, before: int, start: int) -> bool:
        config = partition.log.config
        if not config.deletes:
            return False
        # Below this `retention.bytes` let go what may be young; only what follows must be old.
        by_size = self.history.retained.get((partition.log.directory.name, start), 0)
        if by_size == start:
            return True
        if config.retention_ms < 0:
            return False
        times = self.history.times.get((partition.topic, int(partition.index)), {})
        first = max(before, by_size)
        youngest = max((time for at, time in times.items() if first <= at < start), default=0)
        return node.clock.latest_ms() - youngest > config.retention_ms
