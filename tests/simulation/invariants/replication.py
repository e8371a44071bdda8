"""Invariants between the replicas of a partition.

What is committed is in the log of everybody whom the newest in-sync set names, and the same
everywhere; a leader's high watermark moves only past what the maximal in-sync set has (KIP-497),
while enough replicas are in sync (KIP-966); no process counts after its successor (KIP-903).
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from headrace_broker.server.partitions.partition import Partition
from simulation.cluster import Cluster, Node
from simulation.history import History
from simulation.invariants.invariant import Final, Invariant
from simulation.invariants.logs import batches_of
from simulation.invariants.partitions import name_of
from simulation.observing import observer

_OFFSETS_BETWEEN_COMPARISONS = 20

Place = tuple[UUID, int]

_NOBODY: tuple[int, frozenset[int]] = (-1, frozenset())
"""A partition epoch before all others, and who is in sync in it."""


@dataclass(slots=True)
class Seen:
    """A leader at the last look."""

    leading: Any
    high_watermark: int
    partition_epoch: int
    pending: Any
    isr: tuple[int, ...]
    minimum: int


class Replication(Invariant):
    """Compares what replicas have with what was committed."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        super().__init__(cluster, history)
        self._ends: dict[Place, int] = {}
        self._leaders: dict[Any, Seen] = {}
        self._fetches: dict[Any, tuple[int, int, int]] = {}
        self._compared: dict[Any, int] = {}
        self._committed: dict[Place, dict[int, tuple[int, int, int]]] = {}

    def check_node(self, node: Node) -> None:
        """Learn what a node's replicas know, and check what its leaders did."""
        broker: Any = node.broker
        for partition in broker.replicas:
            place = _place_of(partition)
            high_watermark = int(partition.high_watermark)
            self._ends[place] = max(self._ends.get(place, 0), high_watermark)
            if partition.leading is not None:
                self._check_leader(node, partition)
                self._check_fetches(node, partition)
            else:
                self._leaders.pop(partition, None)
            if high_watermark - self._compared.get(partition, 0) >= _OFFSETS_BETWEEN_COMPARISONS:
                self._compare(node, partition)

    def check(self) -> None:
        """Everybody in sync has what is committed."""
        for node in self.cluster.nodes:
            if not node.is_ready or node.has_failed_directory:
                continue
            broker: Any = node.broker
            for partition in broker.replicas:
                place = _place_of(partition)
                _, members = self.history.in_sync.get(place, _NOBODY)
                committed = self._ends.get(place, 0)
                if node.node_id in members and partition.log.log_end_offset < committed:
                    self.history.violate(
                        "in-sync-without-the-committed",
                        f"{name_of(node, partition)} is in sync and ends at "
                        f"{partition.log.log_end_offset}; {committed} is committed",
                    )

    def _check_leader(self, node: Node, partition: Any) -> None:
        leading = partition.leading
        now = Seen(
            leading,
            int(partition.high_watermark),
            leading.partition_epoch,
            leading.pending,
            tuple(leading.isr),
            leading.min_in_sync_replicas,
        )
        before = self._leaders.get(partition)
        self._leaders[partition] = now
        if (
            before is None
            or before.leading is not leading
            or before.partition_epoch != now.partition_epoch
            or before.minimum != now.minimum
            or now.high_watermark <= before.high_watermark
        ):
            return
        if len(now.isr) < now.minimum:
            self.history.violate(
                "committed-below-min-isr",
                f"{name_of(node, partition)}: {now.high_watermark} with {now.isr} in sync",
            )
        counted = set(now.isr)
        if now.pending is not None and now.pending is before.pending:
            counted |= now.pending.nodes
            self.history.reach("records are committed while an in-sync set is asked for")
        for member in counted - {node.node_id}:
            progress = leading.followers.get(member)
            if progress is not None and progress.fetch_offset < now.high_watermark:
                self.history.violate(
                    "committed-without-the-maximal-isr",
                    f"{name_of(node, partition)}: {now.high_watermark} is committed, broker "
                    f"{member} has {progress.fetch_offset}",
                )

    def _check_fetches(self, node: Node, partition: Any) -> None:
        """Only a follower's newest process reports its progress."""
        brokers = partition.host.image.brokers
        for member, progress in partition.leading.followers.items():
            broker = brokers.get(member)
            registered = -1 if broker is None else int(broker.epoch)
            epoch = int(progress.broker_epoch)
            before = self._fetches.get(progress)
            self._fetches[progress] = (epoch, progress.last_fetch_ms, registered)
            if before is None:
                continue
            has_fetched = progress.last_fetch_ms != before[1]
            if epoch < before[0] or (has_fetched and epoch < before[2]):
                self.history.violate(
                    "former-process-counts",
                    f"{name_of(node, partition)}: broker {member} fetched in epoch {epoch}, it had "
                    f"fetched in {before[0]} and is registered in {before[2]}",
                )

    def _compare(self, node: Node, partition: Any) -> None:
        """Hold what is newly committed here to what was committed elsewhere."""
        if self.history.may_have_holes or partition.log.config.compacts:
            return
        place = _place_of(partition)
        committed = self._committed.setdefault(place, {})
        start = self._compared.get(partition, 0)
        end = self._compared[partition] = int(partition.high_watermark)
        # Below its leader's log start a follower may keep what an epoch wrote that is forgotten.
        for header in batches_of(partition.log, max(start, int(partition.log.log_start_offset))):
            last = int(header.base_offset) + header.last_offset_delta
            if last >= end:
                break
            found = (last, int(header.partition_leader_epoch), int(header.crc))
            known = committed.setdefault(int(header.base_offset), found)
            if known != found:
                self.history.violate(
                    "committed-records-differ",
                    f"{name_of(node, partition)} has {found} at {header.base_offset}, another "
                    f"replica had {known}",
                )

    def at_the_end(self, final: Final) -> None:  # noqa: ARG002 - what clients read is compared elsewhere
        """Compare the rest."""
        for node in self.cluster.nodes:
            broker: Any = node.broker
            for partition in broker.replicas if node.is_ready else ():
                self._compare(node, partition)


def _place_of(partition: Any) -> Place:
    return partition.topic_id, int(partition.index)


# A look between steps may miss the newest in-sync set: a leader commits without who has left, tells
# a follower, and ends. That follower hears of the high watermark first, and of the set a moment
# later (seed 7101293 with 3 nodes). So a set counts from the call on in which a replica learns it:
# what is committed by it is committed after that.
@observer(Partition, "apply")
@observer(Partition, "isr_committed")
def _learn(
    history: History, original: Any, partition: Partition, *arguments: Any, **named: Any
) -> Any:
    """Note the newest in-sync set that any replica ever knew."""
    try:
        return original(partition, *arguments, **named)
    finally:
        place = _place_of(partition)
        if partition.partition_epoch > history.in_sync.get(place, _NOBODY)[0]:
            members = frozenset(map(int, partition.in_sync_replicas))
            history.in_sync[place] = (partition.partition_epoch, members)
