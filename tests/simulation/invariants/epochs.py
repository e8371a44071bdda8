"""The leader epochs that a replica notes are those of the batches in its log (KIP-101)."""

from itertools import pairwise
from typing import Any

from simulation.cluster import Cluster, Node
from simulation.history import History
from simulation.invariants.invariant import Final, Invariant
from simulation.invariants.logs import batches_of
from simulation.invariants.partitions import name_of


class Epochs(Invariant):
    """Looks at a log when its epochs changed, when it became shorter, and at the end."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        super().__init__(cluster, history)
        self._seen: dict[Any, tuple[list[tuple[int, int]], int]] = {}
        self._starts: dict[tuple[str, int], int] = {}
        """The highest log start that any replica of a partition had."""

    def check_node(self, node: Node) -> None:
        """Check the replicas whose epochs may have come apart from their logs."""
        broker: Any = node.broker
        for partition in broker.replicas:
            log = partition.log
            entries, end = log.leader_epochs.entries, int(log.log_end_offset)
            place = (partition.topic, int(partition.index))
            start = int(log.log_start_offset)
            if start > self._starts.get(place, 0):
                self._starts[place] = start
            before = self._seen.get(partition)
            self._seen[partition] = (entries, end)
            if before is None or before[0] != entries or end < before[1]:
                self._check(node, partition)

    def _check(self, node: Node, partition: Any) -> None:
        log = partition.log
        entries = log.leader_epochs.entries
        for (epoch, start), (later, following) in pairwise(entries):
            if later <= epoch or following <= start:
                self._violate(node, partition, f"{entries} do not ascend")
        if entries and entries[-1][1] > log.log_end_offset:
            self._violate(node, partition, f"{entries} go beyond the end, {log.log_end_offset}")
        start = int(log.log_start_offset)
        place = (partition.topic, int(partition.index))
        if place in self.history.trims or self.history.may_begin_later:
            # A kill may take back a log's start whose epochs are gone already: the first ones, or,
            # where a truncation took those above it too, all of them.
            start = max(start, entries[0][1] if entries else self._starts.get(place, 0))
        for header in batches_of(log, start):
            base = max(int(header.base_offset), start)
            if any(each.first_offset <= base < each.next_offset for each in log.damages):
                continue  # what is damaged says nothing
            noted = log.leader_epochs.epoch_for_offset(base)
            if noted != header.partition_leader_epoch:
                self._violate(
                    node,
                    partition,
                    f"{entries} say {noted} of offset {base}, the batch there is of epoch "
                    f"{header.partition_leader_epoch}",
                )
                return

    def _violate(self, node: Node, partition: Any, text: str) -> None:
        self.history.violate("leader-epochs", f"{name_of(node, partition)}: {text}")

    def at_the_end(self, final: Final) -> None:  # noqa: ARG002 - the logs themselves are looked at
        """Check all of them once more."""
        for node in self.cluster.nodes:
            broker: Any = node.broker
            for partition in broker.replicas if node.is_ready else ():
                self._check(node, partition)
