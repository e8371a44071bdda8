"""Places the replicas of new partitions.

Leaders go to the broker with the fewest leaders, so that any sequence of new topics spreads evenly.
Followers go round the remaining brokers with a shift that changes each lap (as in Kafka's
AdminUtils), other racks first. A fenced broker gets a replica only if there are not enough others,
and never leads; a cordoned one gets none.
"""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from headrace_broker.metadata.cordons import cordoned_brokers, placeable_brokers
from headrace_broker.metadata.decision import RandomSource
from headrace_broker.metadata.entities import BrokerImage
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import NodeId


class Placer:
    """Places partitions one after another; counts what it has placed already."""

    def __init__(self, image: MetadataImage, rng: RandomSource) -> None:
        usable = image.brokers.keys() - cordoned_brokers(image)
        self._cordoned = len(image.brokers) - len(usable)
        self._usable = len(usable)
        self._ring = _interleave_racks(placeable_brokers(image), rng)
        self._fenced = sorted(usable - set(self._ring))
        self._racks: Mapping[NodeId, str | None] = {
            node: broker.rack for node, broker in image.brokers.items()
        }
        counts = leader_counts(image)
        self._leaders = [
            (counts.get(node, 0), position, node) for position, node in enumerate(self._ring)
        ]
        heapq.heapify(self._leaders)
        self._placed = 0

    def place(self, partitions: int, replication_factor: int) -> list[list[NodeId]]:
        """Return the replicas of each new partition, its preferred leader first.

        Raises ApiError(INVALID_REPLICATION_FACTOR) where there are too few brokers.
        """
        if replication_factor > self._usable:
            cordoned = f", {self._cordoned} more cordoned" if self._cordoned else ""
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {replication_factor} time(s): The target "
                f"replication factor of {replication_factor} cannot be reached because only "
                f"{self._usable} broker(s) are registered{cordoned}.",
            )
        if not self._ring:
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {replication_factor} time(s): "
                "All brokers are currently fenced or cordoned.",
            )
        return [self._place_one(replication_factor) for _ in range(partitions)]

    def _place_one(self, replication_factor: int) -> list[NodeId]:
        leads, position, leader = self._leaders[0]
        heapq.heapreplace(self._leaders, (leads + 1, position, leader))
        others = len(self._ring) - 1
        shift = self._placed // len(self._ring)
        self._placed += 1
        candidates = [
            self._ring[(position + 1 + (shift + step) % others) % len(self._ring)]
            for step in range(others)
        ]
        return [leader, *self._followers(leader, candidates, replication_factor - 1)]

    def _followers(self, leader: NodeId, candidates: Sequence[NodeId], count: int) -> list[NodeId]:
        """Take candidates of racks that have no replica yet, then the rest, then fenced brokers."""
        chosen: list[NodeId] = []
        used = {self._racks[leader]}
        later: list[NodeId] = []
        for node in candidates:
            if len(chosen) == count:
                return chosen
            if self._racks[node] is not None and self._racks[node] in used:
                later.append(node)
            else:
                used.add(self._racks[node])
                chosen.append(node)
        return [*chosen, *later, *self._fenced][:count]


def leader_counts(image: MetadataImage) -> dict[NodeId, int]:
    """Return how many partitions each broker leads."""
    counts: dict[NodeId, int] = {}
    for topic in image.topics.values():
        for partition in topic.partitions.values():
            counts[partition.leader] = counts.get(partition.leader, 0) + 1
    return counts


def replica_counts(image: MetadataImage) -> Counter[NodeId]:
    """Return how many replicas each broker has."""
    return Counter(
        node
        for topic in image.topics.values()
        for partition in topic.partitions.values()
        for node in partition.replicas
    )


def preferred_leader_counts(image: MetadataImage) -> Counter[NodeId]:
    """Return in how many partitions each broker is the first replica."""
    return Counter(
        partition.replicas[0]
        for topic in image.topics.values()
        for partition in topic.partitions.values()
    )


def _interleave_racks(brokers: Sequence[BrokerImage], rng: RandomSource) -> list[NodeId]:
    """Return the brokers in random order, neighbours in different racks where that is possible."""
    by_rack: dict[str | None, list[NodeId]] = {}
    for broker in sorted(brokers, key=lambda broker: (rng.random(), broker.node_id)):
        by_rack.setdefault(broker.rack, []).append(broker.node_id)
    laps = zip_longest(*by_rack.values())
    return [node for lap in laps for node in lap if node is not None]
