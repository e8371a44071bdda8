"""The elements of the metadata image: brokers, topics and partitions, as immutable values."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from headrace_broker.metadata.records import (
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
)
from headrace_broker.protocol.types import (
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    BrokerEpoch,
    LeaderEpoch,
    NodeId,
    PartitionIndex,
    TopicId,
)

#: `PartitionChangeRecord.leader` if the leader stays, and the epoch with it.
_LEADER_UNCHANGED = -2


NO_LEADER = NodeId(-1)

#: Topics that the cluster writes itself, as Kafka's `Topic.INTERNAL_TOPICS`.
GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_GROUP_STATE_TOPIC = "__share_group_state"
CLUSTER_METADATA_TOPIC = "__cluster_metadata"
INTERNAL_TOPICS = frozenset(
    {GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One address of a broker. `security_protocol` is Kafka's id (0 is PLAINTEXT)."""

    name: str
    host: str
    port: int
    security_protocol: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerImage:
    """One registered broker. A fenced one takes no leadership and is not shown to clients."""

    node_id: NodeId
    epoch: BrokerEpoch
    incarnation_id: UUID
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool = False
    log_dirs: tuple[UUID, ...] = ()

    @property
    def is_active(self) -> bool:
        """Whether it may lead partitions now."""
        return not self.fenced and not self.in_controlled_shutdown

    @property
    def default_directory(self) -> UUID:
        """Where a new replica goes: to the only directory, else the broker chooses."""
        return self.log_dirs[0] if len(self.log_dirs) == 1 else UNASSIGNED_DIRECTORY

    def has_online(self, directory: UUID) -> bool:
        """Whether a directory is, or may be, in use (Kafka's DirectoryId.isOnline)."""
        if directory in (MIGRATING_DIRECTORY, UNASSIGNED_DIRECTORY):
            return True
        return directory != LOST_DIRECTORY and (not self.log_dirs or directory in self.log_dirs)

    def endpoint(self, listener_name: str) -> Endpoint | None:
        """Return the address under that listener name."""
        for endpoint in self.endpoints:
            if endpoint.name == listener_name:
                return endpoint
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionImage:
    """One partition. ISR ⊆ replicas; `elr` and `last_known_elr` are KIP-966's."""

    leader: NodeId
    leader_epoch: LeaderEpoch
    partition_epoch: int
    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    removing_replicas: tuple[NodeId, ...] = ()
    adding_replicas: tuple[NodeId, ...] = ()
    eligible_leader_replicas: tuple[NodeId, ...] = ()
    last_known_elr: tuple[NodeId, ...] = ()
    directories: tuple[UUID, ...] = ()
    leader_recovery_state: int = 0

    def directory_of(self, node_id: NodeId) -> UUID:
        """Return the broker's log directory of its replica, as last reported."""
        for node, directory in zip(self.replicas, self.directories, strict=False):
            if node == node_id:
                return directory
        return UNASSIGNED_DIRECTORY


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    """One topic and its partitions, whose indexes are 0 … n-1."""

    name: str
    topic_id: TopicId
    partitions: Mapping[PartitionIndex, PartitionImage]

    @property
    def is_internal(self) -> bool:
        """Whether the cluster writes it itself."""
        return self.name in INTERNAL_TOPICS


def broker_from_record(record: RegisterBrokerRecord) -> BrokerImage:
    """Return the broker that `record` registers."""
    return BrokerImage(
        node_id=NodeId(record.broker_id),
        epoch=BrokerEpoch(record.broker_epoch),
        incarnation_id=record.incarnation_id,
        endpoints=tuple(
            Endpoint(
                name=endpoint.name,
                host=endpoint.host,
                port=endpoint.port,
                security_protocol=endpoint.security_protocol,
            )
            for endpoint in record.end_points
        ),
        rack=record.rack,
        fenced=record.fenced,
        in_controlled_shutdown=record.in_controlled_shutdown,
        log_dirs=tuple(record.log_dirs),
    )


def partition_from_record(record: PartitionRecord) -> PartitionImage:
    """Return the partition that `record` sets."""
    return PartitionImage(
        leader=NodeId(record.leader),
        leader_epoch=LeaderEpoch(record.leader_epoch),
        partition_epoch=record.partition_epoch,
        replicas=_nodes(record.replicas),
        isr=_nodes(record.isr),
        removing_replicas=_nodes(record.removing_replicas),
        adding_replicas=_nodes(record.adding_replicas),
        eligible_leader_replicas=_nodes(record.eligible_leader_replicas),
        last_known_elr=_nodes(record.last_known_elr),
        directories=tuple(record.directories),
        leader_recovery_state=record.leader_recovery_state,
    )


def merge_partition(before: PartitionImage, change: PartitionChangeRecord) -> PartitionImage:
    """Return the partition after `change`, as KRaft's `PartitionRegistration.merge`.

    Naming a leader, even the same one, begins a new leader epoch.
    """
    has_leader = change.leader != _LEADER_UNCHANGED
    return PartitionImage(
        leader=NodeId(change.leader) if has_leader else before.leader,
        leader_epoch=LeaderEpoch(before.leader_epoch + 1) if has_leader else before.leader_epoch,
        partition_epoch=before.partition_epoch + 1,
        replicas=_changed(change.replicas, before.replicas),
        isr=_changed(change.isr, before.isr),
        removing_replicas=_changed(change.removing_replicas, before.removing_replicas),
        adding_replicas=_changed(change.adding_replicas, before.adding_replicas),
        eligible_leader_replicas=_changed(
            change.eligible_leader_replicas, before.eligible_leader_replicas
        ),
        last_known_elr=_changed(change.last_known_elr, before.last_known_elr),
        directories=before.directories if change.directories is None else tuple(change.directories),
        leader_recovery_state=(
            before.leader_recovery_state
            if change.leader_recovery_state < 0
            else change.leader_recovery_state
        ),
    )


def _changed(change: Iterable[int] | None, before: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    return before if change is None else _nodes(change)


def _nodes(ids: Iterable[int] | None) -> tuple[NodeId, ...]:
    return () if ids is None else tuple(NodeId(node_id) for node_id in ids)
