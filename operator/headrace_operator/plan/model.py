"""The input and output values of a plan. Pure: no client, no clock, no randomness.

`Observed` is the present state from brokers and processes, `Desired` the state in the manifests. An
`Action` is carried out elsewhere: by `headrace_operator.apply` for topics and groups, by a backend
for brokers and applications.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from headrace_operator.resources import (
    Cluster,
    ConsumerGroup,
    Deployment,
    Reason,
    SparkApplication,
    Topic,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

#: Kind, namespace and name of a resource.
Key: TypeAlias = tuple[str, str, str]
TopicPartition: TypeAlias = tuple[str, int]


def _empty() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class NodeLoss:
    """A node that a broker waits for. `volumes`: the broker's claims bound to that node.

    `is_gone`: the Node no longer exists, and no user has said that it will return.
    """

    machine: str
    reason: str
    volumes: tuple[str, ...] = ()
    is_gone: bool = False
    is_cordoned: bool = False


@dataclass(frozen=True, kw_only=True)
class ObservedBroker:
    """One broker of the backend. `is_registered`: the controller lists it as alive."""

    node_id: int
    pool: str
    roles: tuple[str, ...] = ("broker", "controller")
    config: Mapping[str, str] = field(default_factory=_empty)
    is_running: bool = True
    is_registered: bool = True
    #: Whether it reports ready: clients are sent to it only then.
    is_ready: bool = True
    address: str = ""
    #: host:port of its controller listener; empty if it has none.
    controller_address: str = ""
    #: Partitions with a replica here: the broker is stopped for good only at 0.
    replicas: int = 0
    rack: str | None = None
    #: Its rack as the backend knows it; None: the one in its settings.
    placed_rack: str | None = None
    #: Its place in the pool if that decides who leaves first (a StatefulSet's ordinal).
    ordinal: int | None = None
    #: What else, besides settings, differs from what it should be started from.
    outdated: tuple[str, ...] = ()
    #: Its present addresses for outside clients, by listener: `host:port`; `:port` on its own node.
    addresses: Mapping[str, str] = field(default_factory=_empty)
    #: What its process advertises for the same listeners; None: not known.
    advertised: Mapping[str, str] | None = None
    #: Identifies that process: another one may advertise other addresses.
    process: str = ""
    #: Why it does not run and will not recover by itself; a recovering broker is not failing.
    failing: str = ""
    #: Whether it voted when the quorum last had a leader; None: not known.
    is_voter: bool | None = None
    #: Whether its volumes were replaced since it last served: its data is gone.
    is_disk_lost: bool = False
    #: Whether it has been failing for so long that nothing waits for it any longer.
    is_stuck: bool = False
    #: The node that it waits for, with its volume.
    loss: NodeLoss | None = None
    #: The last request for new volumes that was begun for it.
    replacement: str = ""
    #: Whether it still lacks replicas since then.
    is_refilling: bool = False
    #: The broker that was removed, in whose place this one begins; None when it has begun.
    succeeds: int | None = None

    @property
    def is_data_lost(self) -> bool:
        """Whether it can never start again with its data, unless a node comes back."""
        is_node_gone = self.loss is not None and self.loss.is_gone and bool(self.loss.volumes)
        return self.is_disk_lost or is_node_gone


@dataclass(frozen=True, kw_only=True)
class ObservedPartition:
    """A partition's replicas, the preferred leader first. `leader` -1: there is no leader."""

    replicas: tuple[int, ...]
    in_sync: tuple[int, ...] = ()
    leader: int = -1

    @property
    def is_under_replicated(self) -> bool:
        """Whether a replica is out of sync."""
        return len(self.in_sync) < len(self.replicas)


@dataclass(frozen=True, kw_only=True)
class ObservedReplica:
    """A replica of the metadata log: a node with one particular disk (KIP-853).

    `behind_ms`: how long ago it was caught up with the leader; None: never, or unknown.
    """

    node_id: int
    directory_id: UUID
    behind_ms: int | None = 0


@dataclass(frozen=True, kw_only=True)
class ObservedQuorum:
    """The metadata quorum's leader, voters and observers."""

    leader_id: int
    voters: tuple[ObservedReplica, ...]
    observers: tuple[ObservedReplica, ...] = ()

    def votes(self, node_id: int) -> bool:
        """Whether a node votes, with any disk."""
        return any(voter.node_id == node_id for voter in self.voters)


@dataclass(frozen=True, kw_only=True)
class ObservedCluster:
    """The existing brokers. `is_reachable`: the admin client got answers."""

    cluster_id: str | None = None
    bootstrap_servers: str = ""
    brokers: tuple[ObservedBroker, ...] = ()
    #: All partitions, including those of internal topics.
    partitions: Mapping[TopicPartition, ObservedPartition] = field(default_factory=dict)
    #: Partitions whose replicas are being moved.
    reassigning: frozenset[TopicPartition] = frozenset()
    #: The replicas that are being added to them.
    adding: Mapping[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    #: Bytes of each replica, by broker; queried while replicas move.
    sizes: Mapping[TopicPartition, Mapping[int, int]] = field(default_factory=dict)
    #: When a partition was first seen under-replicated (RFC 3339).
    out_of_sync_since: Mapping[TopicPartition, str] = field(default_factory=dict)
    #: Whether dynamic settings are set dynamically, and in no broker's file.
    has_live_config: bool = False
    #: Those settings as the whole cluster has them; None: not queried.
    live_config: Mapping[str, str] | None = None
    #: New replicas that give brokers that joined their share; None: not queried.
    balance: Mapping[TopicPartition, tuple[int, ...]] | None = None
    #: What the backend waits for, one sentence each.
    pending: tuple[str, ...] = ()
    #: Registered brokers that are gone and unknown to the backend.
    departed: tuple[int, ...] = ()
    #: Log directories that are nearly full or have failed, one sentence each.
    full: tuple[str, ...] = ()
    #: The metadata quorum; None: not queried, or it has no leader now.
    quorum: ObservedQuorum | None = None
    #: The finalized levels of features, by name; None: not queried.
    features: Mapping[str, int] | None = None
    #: The levels that each broker supports, lowest and highest.
    supported_features: Mapping[int, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    #: Whether it ever served: before that, a restart cannot interrupt any client.
    is_formed: bool = True
    is_reachable: bool = True
    #: Why it is not reachable.
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class ObservedTopic:
    """A topic as the brokers have it. `config` holds the topic's own overrides."""

    partitions: int
    replicas: int
    config: Mapping[str, str] = field(default_factory=_empty)
    topic_id: str = ""
    #: Partitions with an incomplete in-sync set, and those without a leader.
    under_replicated: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ObservedMember:
    """A member of a consumer group and its assignment."""

    member_id: str
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...] = ()
    #: Of a static member (KIP-345); '' for others.
    instance_id: str = ""
    #: The epoch of its assignment; None in a classic group.
    epoch: int | None = None


@dataclass(frozen=True, kw_only=True)
class ObservedGroup:
    """A group: committed offsets (a share group's start offsets), the bounds of those partitions.

    `reset_offsets`: the target offsets of a requested reset, which the observer looks up (only the
    brokers can map a timestamp to an offset).
    """

    state: str
    members: tuple[ObservedMember, ...] = ()
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    start_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    end_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    reset_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    lag_seconds: int | None = None
    type: str = "classic"  # or consumer (KIP-848), share (KIP-932)
    #: The lag as the brokers report it: a share group has finished records beyond its start, too.
    told_lag: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: The assignor: `range`, `uniform`, `simple` …; '' if there is none.
    assignor: str = ""
    #: The epochs of the group and of its assignment; None in a classic group.
    epoch: int | None = None
    assignment_epoch: int | None = None

    @property
    def lag(self) -> Mapping[TopicPartition, int]:
        """Records that the group has not finished, for every partition that it has begun."""
        return {
            partition: self.told_lag.get(partition, max(0, self.end_offsets[partition] - offset))
            for partition, offset in self.offsets.items()
            if partition in self.end_offsets
        }

    @property
    def lag_records(self) -> int:
        """Records behind the end, summed over all partitions."""
        return sum(self.lag.values())

    @property
    def is_share(self) -> bool:
        """Whether members share partitions, and acknowledge each record (KIP-932)."""
        return self.type == "share"

    @property
    def progress(self) -> Mapping[TopicPartition, int]:
        """Its offsets, plus the records that a share group has finished beyond them."""
        if not self.is_share:
            return self.offsets
        return {key: self.end_offsets[key] - records for key, records in self.lag.items()}


@dataclass(frozen=True, kw_only=True)
class ObservedTarget:
    """A ConsumerGroup's `present_target`: its desired and present replicas."""

    replicas: int
    running: int = 0
    #: Why it cannot be scaled; '' if it can.
    error: str = ""
    is_missing: bool = False
    #: Whether it exists and does not allow the group to scale it.
    is_refused: bool = False
    #: Whether the error is a temporary one of the API server.
    is_unknown: bool = False
    #: Why lag does not scale it, though it can be stopped and started.
    fixed: str = ""


@dataclass(frozen=True, kw_only=True)
class Trend:
    """The result of several observations of a group. The observer keeps it; its loss costs time."""

    now_ms: int
    lag_records: int = 0
    consumed_per_second: float = 0.0
    produced_per_second: float = 0.0
    #: The highest rate of one replica under load; 0: not seen yet.
    capacity_per_second: float = 0.0
    #: When this operator last changed the replicas.
    scaled_at_ms: int = 0
    #: The recommendation of each observation, oldest first.
    recommendations: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ObservedApplication:
    """A process or workload of the backend. `fingerprint`: of the spec it was started from."""

    is_running: bool
    fingerprint: str = ""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The state at one moment. `cluster` is None before anything is started."""

    cluster: ObservedCluster | None = None
    topics: Mapping[str, ObservedTopic] = field(default_factory=dict)
    groups: Mapping[str, ObservedGroup] = field(default_factory=dict)
    applications: Mapping[Key, ObservedApplication] = field(default_factory=dict)
    #: By the ConsumerGroup's key. Only if the backend scales workloads itself.
    targets: Mapping[Key, ObservedTarget] = field(default_factory=dict)
    trends: Mapping[Key, Trend] = field(default_factory=dict)


Application: TypeAlias = SparkApplication | Deployment


@dataclass(frozen=True, kw_only=True)
class Desired:
    """One cluster and the resources that refer to it. `deleted`: those marked for deletion."""

    cluster: Cluster | None = None
    topics: tuple[Topic, ...] = ()
    groups: tuple[ConsumerGroup, ...] = ()
    applications: tuple[Application, ...] = ()
    deleted: frozenset[Key] = frozenset()
    #: Namespaces whose labels the Cluster's `allowedTopics` selects.
    selected_namespaces: frozenset[str] = frozenset()
    #: Whether these are all Topics and groups of the cluster, or only those that are due.
    is_complete: bool = True


@dataclass(frozen=True, kw_only=True)
class Action:
    """An action. `resource` is the one whose spec asks for it."""

    resource: Key

    def describe(self) -> str:
        """Describe the action in a line for a dry run; lines of a change begin with its subject."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that the spec asks for and that cannot or must not be done."""

    resource: Key
    reason: Reason
    message: str
    #: A stalled resource needs a change by a user; the others only report something.
    is_stalling: bool = True


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Something that will be done once the event in `message` has happened."""

    resource: Key
    reason: Reason
    message: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to do, in order; what cannot be done; what must wait."""

    actions: tuple[Action, ...] = ()
    problems: tuple[Problem, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    #: Actions on the cluster once its `approvedPlan` has this `hash` (updatePolicy: Plan).
    proposed: tuple[Action, ...] = ()
    #: Names the cluster's next state; it stays the same while the plan is carried out in steps.
    target: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do and nothing to wait for."""
        return not self.actions and not self.waiting

    @property
    def hash(self) -> str:
        """The name of the proposal; writing it into `spec.approvedPlan` approves it."""
        return self.target or hash_of(self.proposed)

    def describe(self) -> str:
        """Return the whole plan as text, for a dry run."""
        lines = [action.describe() for action in self.actions]
        lines += [f"? {action.describe()}" for action in self.proposed]
        lines += [
            f"! {kind}/{name}: {problem.reason}: {problem.message}"
            for problem in self.problems
            for kind, _, name in [problem.resource]
        ]
        lines += [
            f"… {kind}/{name}: {wait.reason}: {wait.message}"
            for wait in self.waiting
            for kind, _, name in [wait.resource]
        ]
        return "\n".join(lines) or "nothing to do"


def hash_of(actions: tuple[Action, ...]) -> str:
    """Return a short name of these actions, the same for the same actions."""
    text = "\n".join(repr(action) for action in actions)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
