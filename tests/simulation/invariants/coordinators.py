"""Who coordinates groups, as far as brokers know."""

from typing import Any

from headrace_broker.coordinator.partitioning import partition_for_group
from headrace_broker.metadata.entities import GROUP_METADATA_TOPIC
from simulation.cluster import OFFSETS_PARTITIONS, Cluster
from simulation.history import History
from simulation.invariants.invariant import Invariant


class Coordinators(Invariant):
    """Remembers the newest leader of each partition of committed offsets."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        super().__init__(cluster, history)
        self._coordinators: dict[int, tuple[int, int]] = {}
        history.coordinator = self.coordinator

    def coordinator(self, group: str) -> tuple[int, tuple[str, int] | None]:
        """Return the newest leader epoch of a group's partition so far, and its leader's address.

        What brokers know is the only witness: neither a commit nor its answer names the epoch.
        """
        self.check()
        index = partition_for_group(group, OFFSETS_PARTITIONS)
        epoch, leader = self._coordinators.get(index, (-1, -1))
        return epoch, self.cluster.nodes[leader - 1].address if leader > 0 else None

    def check(self) -> None:
        """Note who leads now."""
        for node in self.cluster.nodes:
            broker: Any = node.broker
            if broker is None or not broker.is_composed:
                continue
            for index, partition in broker.replicas.partitions_of(GROUP_METADATA_TOPIC).items():
                term = partition.leader_epoch, partition.leader
                self._coordinators[index] = max(term, self._coordinators.get(index, term))
