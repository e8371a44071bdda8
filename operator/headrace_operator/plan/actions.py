"""The actions that plans consist of. Each describes itself for dry runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace_operator.plan.model import Action, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from headrace_operator.resources.consumer_group import TargetReference


@dataclass(frozen=True, kw_only=True)
class StartBroker(Action):
    """Start a broker with these settings; the backend sets listeners and directories."""

    node_id: int
    pool: str
    roles: tuple[str, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    rack: str | None = None

    def describe(self) -> str:
        """See Action."""
        return f"+ broker {self.node_id} (pool {self.pool}, {', '.join(self.roles)})"


@dataclass(frozen=True, kw_only=True)
class StopBroker(Action):
    """Stop a broker that no pool wants any longer. Its data stays."""

    node_id: int
    pool: str
    #: Who begins in its place, which the pool keeps, with new volumes.
    successor: int | None = None

    def describe(self) -> str:
        """See Action."""
        after = "" if self.successor is None else f"; broker {self.successor} begins in its place"
        return f"- broker {self.node_id} (pool {self.pool}){after}"


@dataclass(frozen=True, kw_only=True)
class MoveReplicas(Action):
    """Give partitions new replicas, in order of preference. Brokers serve clients meanwhile."""

    moves: Mapping[TopicPartition, tuple[int, ...]]
    #: Brokers that the replicas move away from; empty: they move to brokers that joined.
    leaving: tuple[int, ...]
    #: The throttle to set, in bytes per second for each broker; None: it is set already.
    throttle: int | None = None

    def describe(self) -> str:
        """See Action."""
        if not self.leaving:
            count = len(self.moves)
            return f"~ give brokers that joined their share: new replicas for {count} partitions"
        brokers = ", ".join(map(str, self.leaving))
        return f"~ move replicas of {len(self.moves)} partitions away from broker {brokers}"


@dataclass(frozen=True, kw_only=True)
class ChangeReplicationFactor(MoveReplicas):
    """Give partitions of a topic more or fewer replicas than they have."""

    topic: str
    replicas: int
    current: int
    #: How many of them get more replicas, which have to be copied.
    copies: int = 0

    def describe(self) -> str:
        """See Action."""
        return (
            f"~ topic {self.topic}: replicas {self.current} -> {self.replicas}"
            f" of {len(self.moves)} partitions"
        )


@dataclass(frozen=True, kw_only=True)
class CordonBrokers(Action):
    """Cordon these brokers against new replicas, and uncordon brokers drained before."""

    cordoned: tuple[int, ...] = ()
    uncordoned: tuple[int, ...] = ()
    #: All brokers cordoned by this operator after this action: it uncordons no others.
    drained: tuple[int, ...] = ()

    def describe(self) -> str:
        """See Action."""
        parts = []
        if self.cordoned:
            parts.append(f"cordon broker {', '.join(map(str, self.cordoned))}")
        if self.uncordoned:
            parts.append(f"uncordon broker {', '.join(map(str, self.uncordoned))}")
        return f"~ {' and '.join(parts) or 'forget cordons of brokers that are gone'}"


@dataclass(frozen=True, kw_only=True)
class AddVoter(Action):
    """Make a controller a voter that follows the metadata log with this disk."""

    node_id: int
    directory_id: UUID
    #: host:port of its controller listener.
    address: str

    def describe(self) -> str:
        """See Action."""
        return f"+ vote of broker {self.node_id} in the metadata quorum"


@dataclass(frozen=True, kw_only=True)
class RemoveVoter(Action):
    """Make a voter of the metadata quorum an observer. `reason`: why, in a few words."""

    node_id: int
    directory_id: UUID
    reason: str

    def describe(self) -> str:
        """See Action."""
        return f"- vote of broker {self.node_id} in the metadata quorum ({self.reason})"


@dataclass(frozen=True, kw_only=True)
class AlterClusterConfig(Action):
    """Set and delete dynamic settings of all brokers, without restarts (KIP-226)."""

    set: Mapping[str, str] = field(default_factory=dict)
    delete: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()

    def describe(self) -> str:
        """See Action."""
        return f"~ all brokers, without a restart: {'; '.join(self.changes)}"


@dataclass(frozen=True, kw_only=True)
class SetFeatureLevels(Action):
    """Change the cluster's feature levels: before and after, by name."""

    levels: Mapping[str, tuple[int, int]]

    def describe(self) -> str:
        """See Action."""
        listed = (f"{name} {old} -> {new}" for name, (old, new) in sorted(self.levels.items()))
        return f"~ features: {', '.join(listed)}"


@dataclass(frozen=True, kw_only=True)
class UnregisterBroker(Action):
    """Unregister a broker that was stopped for good."""

    node_id: int

    def describe(self) -> str:
        """See Action."""
        return f"- registration of broker {self.node_id}"


@dataclass(frozen=True, kw_only=True)
class ReconfigureBroker(Action):
    """Give a broker new settings. The backend restarts it for settings read at start."""

    node_id: int
    pool: str
    config: Mapping[str, str]
    changes: tuple[str, ...]

    def describe(self) -> str:
        """See Action."""
        return f"~ broker {self.node_id}: {'; '.join(self.changes)}"


@dataclass(frozen=True, kw_only=True)
class ReplaceVolumes(Action):
    """Delete a broker's volume claims, by name, that are bound to a node that is gone."""

    node_id: int
    machine: str
    volumes: tuple[str, ...]

    def describe(self) -> str:
        """See Action."""
        names = ", ".join(self.volumes)
        return f"~ broker {self.node_id}: new volumes for {names}, lost with node {self.machine}"


@dataclass(frozen=True, kw_only=True)
class RefillBroker(Action):
    """Let a broker start with new volumes, and replicate all again. `bytes_` None: unknown."""

    node_id: int
    request_id: str
    partitions: int = 0
    bytes_: int | None = None

    def describe(self) -> str:
        """See Action."""
        size = "bytes that are not known" if self.bytes_ is None else f"{self.bytes_} bytes"
        return (
            f"~ broker {self.node_id}: new volumes ({self.request_id}); the others fill it again:"
            f" {self.partitions} partitions, {size}"
        )


@dataclass(frozen=True, kw_only=True)
class CreateTopic(Action):
    """Create a topic. `replicas` -1: the cluster's default.replication.factor."""

    topic: str
    partitions: int
    replicas: int
    config: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """See Action."""
        replicas = "default" if self.replicas < 0 else str(self.replicas)
        settings = "".join(f" {key}={value}" for key, value in sorted(self.config.items()))
        return f"+ topic {self.topic}: {self.partitions} partitions, replicas {replicas}{settings}"


@dataclass(frozen=True, kw_only=True)
class CreatePartitions(Action):
    """Add partitions. `partitions` is the new total."""

    topic: str
    partitions: int
    current: int

    def describe(self) -> str:
        """See Action."""
        return f"~ topic {self.topic}: partitions {self.current} -> {self.partitions}"


@dataclass(frozen=True, kw_only=True)
class AlterTopicConfig(Action):
    """Set and delete a topic's settings. `previous` has the present ones, for the text."""

    topic: str
    set: Mapping[str, str] = field(default_factory=dict)
    delete: tuple[str, ...] = ()
    previous: Mapping[str, str] = field(default_factory=dict)

    def describe(self) -> str:
        """See Action."""
        changes = [
            f"{key} {self.previous.get(key, 'default')} -> {value}"
            for key, value in sorted(self.set.items())
        ]
        changes += [f"{key} {self.previous.get(key, '?')} -> default" for key in self.delete]
        return f"~ topic {self.topic}: {'; '.join(changes)}"


@dataclass(frozen=True, kw_only=True)
class DeleteTopic(Action):
    """Delete a topic and all its records."""

    topic: str

    def describe(self) -> str:
        """See Action."""
        return f"- topic {self.topic} with all its records"


@dataclass(frozen=True, kw_only=True)
class ResetOffsets(Action):
    """Let an empty group continue at these offsets. `previous` undoes it."""

    group: str
    request_id: str
    offsets: Mapping[TopicPartition, int]
    previous: Mapping[TopicPartition, int] = field(default_factory=dict)
    is_dry_run: bool = False
    #: A share group has no committed offsets: the brokers set its start offsets.
    is_share: bool = False

    def describe(self) -> str:
        """See Action."""
        moves = [
            f"{topic}-{index} {self.previous.get((topic, index), 'none')} -> {offset}"
            for (topic, index), offset in sorted(self.offsets.items())
        ]
        suffix = " (dry run)" if self.is_dry_run else ""
        return f"~ group {self.group}: {'; '.join(moves)}{suffix}"


@dataclass(frozen=True, kw_only=True)
class ScaleTarget(Action):
    """Scale a group's workload. `is_pause`: it gets its `previous` replicas back afterwards."""

    target: TargetReference
    replicas: int
    previous: int
    reason: str
    is_pause: bool = False

    def describe(self) -> str:
        """See Action."""
        name = f"{self.target.kind} {self.target.name}"
        return f"~ scale {name} {self.previous} -> {self.replicas} ({self.reason})"


@dataclass(frozen=True, kw_only=True)
class DeleteGroup(Action):
    """Delete a consumer group with its committed offsets."""

    group: str

    def describe(self) -> str:
        """See Action."""
        return f"- group {self.group} with its offsets"


@dataclass(frozen=True, kw_only=True)
class StartApplication(Action):
    """Start or restart an application or workload. `fingerprint` identifies its spec."""

    application: str
    fingerprint: str
    is_restart: bool = False

    def describe(self) -> str:
        """See Action."""
        sign = "~ restart" if self.is_restart else "+"
        return f"{sign} {self.resource[0]} {self.application}"


@dataclass(frozen=True, kw_only=True)
class StopApplication(Action):
    """Stop an application or workload."""

    application: str

    def describe(self) -> str:
        """See Action."""
        return f"- {self.resource[0]} {self.application}"
