"""The balancer's input and output: plain values.

A plan is data, so that it can be shown, approved and compared (`BalancePlan.digest`) before it is
carried out. The balancer does not carry it out: a move is a reassignment (KIP-455), whose new
replicas are in sync before an old one is removed, so it never shrinks an ISR below
min.insync.replicas.
"""

from dataclasses import dataclass
from functools import cached_property

from headrace_broker.metadata.configs.balance_settings import PlannedMove, hash_of
from headrace_broker.protocol.types import NodeId, PartitionIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerModel:
    """One broker. A cordoned one gets no new replicas; `capacity` is relative to the others."""

    node_id: NodeId
    rack: str | None = None
    is_alive: bool = True
    is_cordoned: bool = False
    capacity: float = 1.0

    @property
    def takes_replicas(self) -> bool:
        """Whether replicas may be placed there."""
        return self.is_alive and not self.is_cordoned


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionModel:
    """One partition: `replicas` with the preferred leader first, its size, bytes per second."""

    topic: str
    index: PartitionIndex
    replicas: tuple[NodeId, ...]
    leader: NodeId
    isr: tuple[NodeId, ...]
    size_bytes: int = 0
    bytes_in_per_second: float = 0.0
    bytes_out_per_second: float = 0.0
    is_reassigning: bool = False

    @property
    def name(self) -> str:
        """The topic and the index, as Kafka writes them."""
        return f"{self.topic}-{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterModel:
    """All brokers and partitions at one moment."""

    brokers: tuple[BrokerModel, ...]
    partitions: tuple[PartitionModel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """New replicas for one partition; `size_bytes` is the total to copy."""

    topic: str
    partition: PartitionIndex
    from_replicas: tuple[NodeId, ...]
    to_replicas: tuple[NodeId, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderMove:
    """A new leader for one partition: its replicas in this order, then a preferred election."""

    topic: str
    partition: PartitionIndex
    from_leader: NodeId
    to_leader: NodeId
    from_replicas: tuple[NodeId, ...]
    replicas: tuple[NodeId, ...]


@dataclass(frozen=True, kw_only=True)
class BalancePlan:
    """What to do, how much it copies, how long that takes at the throttle, and why."""

    moves: tuple[Move, ...] = ()
    leader_moves: tuple[LeaderMove, ...] = ()
    bytes_total: int = 0
    estimated_seconds: float = 0.0
    reasons: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.moves and not self.leader_moves

    @cached_property
    def steps(self) -> tuple[PlannedMove, ...]:
        """One step for each partition, as the controller carries it out."""
        moved = {(move.topic, move.partition) for move in self.moves}
        copies = (
            PlannedMove(
                topic=move.topic,
                partition=move.partition,
                before=move.from_replicas,
                after=move.to_replicas,
                size_bytes=move.size_bytes,
            )
            for move in self.moves
        )
        led = (
            PlannedMove(
                topic=move.topic,
                partition=move.partition,
                before=move.from_replicas,
                after=move.replicas,
            )
            for move in self.leader_moves
            if (move.topic, move.partition) not in moved
        )
        return (*copies, *led)

    @property
    def digest(self) -> str:
        """Identifies the plan: equal steps have the same digest."""
        return hash_of(self.steps)
