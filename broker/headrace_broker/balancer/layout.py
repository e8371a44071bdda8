"""The balancer's draft of a layout, changed step by step and then turned into a plan.

It changes in place, because a plan for 10,000 partitions takes thousands of steps; no other code
sees it before it is complete.
"""

from collections.abc import Iterable

from headrace_broker.balancer.model import (
    BalancePlan,
    BrokerModel,
    ClusterModel,
    LeaderMove,
    Move,
    PartitionModel,
)
from headrace_broker.protocol.types import NodeId

_NO_LEADER = NodeId(-1)


class Layout:
    """A draft of the cluster. `replicas` and `leaders` are indexed like the model's partitions.

    Racks count only if every broker has one (as in Kafka's placement).
    """

    def __init__(self, cluster: ClusterModel) -> None:
        self.cluster = cluster
        self.partitions = cluster.partitions
        self.brokers: dict[NodeId, BrokerModel] = {
            broker.node_id: broker
            for broker in sorted(cluster.brokers, key=lambda broker: broker.node_id)
        }
        self.takers: list[NodeId] = [
            node for node, broker in self.brokers.items() if broker.takes_replicas
        ]
        has_racks = all(broker.rack is not None for broker in cluster.brokers)
        self.racks: dict[NodeId, str | None] = {
            node: broker.rack if has_racks else None for node, broker in self.brokers.items()
        }
        self.replicas = [list(partition.replicas) for partition in self.partitions]
        self.hosted: dict[NodeId, set[int]] = {node: set() for node in self.brokers}
        for place, nodes in enumerate(self.replicas):
            for node in nodes:
                self.hosted.setdefault(node, set()).add(place)
        total_bytes = sum(partition.size_bytes for partition in self.partitions) or 1
        total_in = sum(partition.bytes_in_per_second for partition in self.partitions) or 1.0
        #: What one replica weighs: its share of the disks and of the writing.
        self.weights = [
            partition.size_bytes / total_bytes + partition.bytes_in_per_second / total_in
            for partition in self.partitions
        ]
        self.load: dict[NodeId, float] = {
            node: sum(self.weights[place] for place in places)
            for node, places in self.hosted.items()
        }
        self.reasons: list[str] = []

    def capacity(self, node: NodeId) -> float:
        """Return the broker's relative capacity."""
        return self.brokers[node].capacity

    def fill(self, node: NodeId, extra: int = 0) -> float:
        """Return the broker's replicas relative to its capacity, with `extra` more."""
        return (len(self.hosted[node]) + extra) / self.capacity(node)

    def pressure(self, node: NodeId) -> float:
        """Return the broker's load (bytes and traffic) relative to its capacity."""
        return self.load[node] / self.capacity(node)

    def is_settled(self, place: int) -> bool:
        """Whether the partition may be moved for balance: fully in sync, and not moving."""
        partition = self.partitions[place]
        return not partition.is_reassigning and set(partition.replicas) <= set(partition.isr)

    def spread(self, nodes: Iterable[NodeId]) -> int:
        """Return how many racks `nodes` cover; without racks each node counts as one."""
        return len({self.racks.get(node) or node for node in nodes})

    def may_replace(self, place: int, old: NodeId, new: NodeId) -> bool:
        """Whether `new` may replace `old`: it has no replica, and no rack is lost."""
        nodes = self.replicas[place]
        if new in nodes:
            return False
        rack = self.racks[new]
        if rack is None or rack == self.racks.get(old):
            return True
        others = [node for node in nodes if node != old]
        return self.spread([*others, new]) >= self.spread(nodes)

    def replace(self, place: int, old: NodeId, new: NodeId) -> None:
        """Replace `old` by `new`, at the same position in the order."""
        nodes = self.replicas[place]
        nodes[nodes.index(old)] = new
        for node, sign in ((old, -1), (new, 1)):
            self.load[node] = self.load.get(node, 0.0) + sign * self.weights[place]
        self.hosted[old].discard(place)
        self.hosted[new].add(place)

    def lead(self, place: int, node: NodeId) -> None:
        """Make `node` the first replica."""
        nodes = self.replicas[place]
        nodes.remove(node)
        nodes.insert(0, node)

    def can_lead(self, place: int, node: NodeId) -> bool:
        """Whether the broker could lead: alive, and in sync or about to be a new replica."""
        partition = self.partitions[place]
        broker = self.brokers.get(node)
        is_new = node not in partition.replicas
        return broker is not None and broker.is_alive and (is_new or node in partition.isr)

    def plan(self, throttle_bytes_per_second: float) -> BalancePlan:
        """Return the steps from the present cluster to this draft.

        Moves in progress are left to finish first.
        """
        moves, leader_moves = [], []
        incoming: dict[NodeId, int] = {}
        for place, (partition, nodes) in enumerate(
            zip(self.partitions, self.replicas, strict=True)
        ):
            if partition.is_reassigning:
                continue
            added = [node for node in nodes if node not in partition.replicas]
            if added:
                moves.append(_move(partition, nodes, len(added)))
            for node in added:
                incoming[node] = incoming.get(node, 0) + partition.size_bytes
            has_other = partition.leader not in {nodes[0], _NO_LEADER}
            if (has_other and self.can_lead(place, nodes[0])) or (
                not added and tuple(nodes) != partition.replicas
            ):
                leader_moves.append(_leader_move(partition, nodes))
        # Brokers copy in parallel: the one that gets the most determines the time.
        slowest = max(incoming.values(), default=0)
        return BalancePlan(
            moves=tuple(moves),
            leader_moves=tuple(leader_moves),
            bytes_total=sum(incoming.values()),
            estimated_seconds=slowest / throttle_bytes_per_second,
            reasons=tuple(self.reasons),
        )


def _move(partition: PartitionModel, nodes: list[NodeId], added: int) -> Move:
    return Move(
        topic=partition.topic,
        partition=partition.index,
        from_replicas=partition.replicas,
        to_replicas=tuple(nodes),
        size_bytes=partition.size_bytes * added,
    )


def _leader_move(partition: PartitionModel, nodes: list[NodeId]) -> LeaderMove:
    return LeaderMove(
        topic=partition.topic,
        partition=partition.index,
        from_leader=partition.leader,
        to_leader=nodes[0],
        from_replicas=partition.replicas,
        replicas=tuple(nodes),
    )
