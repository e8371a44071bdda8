"""The values that a plan is made from and made of. Pure: no client, no clock, no randomness.

`Observed` is what brokers and processes say, `Desired` what the manifests say, an `Action` is an
effect that somebody else performs (`headrace_operator.apply` for topics and groups, a backend for
brokers and applications).
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
    """A node that a broker waits for. `volumes`: its claims whose volumes are bound to that node.

    `is_gone`: the Node does not exist any more, and nobody says that it comes back.
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
    #: Whether it says itself that it may be used: what sends clients to it waits for that.
    is_ready: bool = True
    address: str = ""
    #: host:port of its controller listener; empty where it has none.
    controller_address: str = ""
    #: Partitions that have a replica here: it is not stopped for good before this is 0.
    replicas: int = 0
    rack: str | None = None
    #: Where the backend knows it to be; None: wherever it says.
    placed_rack: str | None = None
    #: Its place in the pool where that says who leaves first (a StatefulSet's ordinal).
    ordinal: int | None = None
    #: What besides settings differs from what it should be started from.
    outdated: tuple[str, ...] = ()
    #: Where clients outside find it now, by listener: `host:port`; `:port` on its own machine.
    addresses: Mapping[str, str] = field(default_factory=_empty)
    #: What its process advertises to them, by the same listeners; None: not known.
    advertised: Mapping[str, str] | None = None
    #: Names that process: another one may advertise something else.
    process: str = ""
    #: Why it does not run and will not by itself; a broker that recovers is not failing.
    failing: str = ""
    #: Whether it served from other volumes than it has now: what it knew is gone.
    is_disk_lost: bool = False
    #: Whether it has been failing for so long that nobody need wait for it.
    is_stuck: bool = False
    #: The node that it waits for, with its volume.
    loss: NodeLoss | None = None
    #: The last request for new volumes that was begun for it.
    replacement: str = ""
    #: Whether it is not filled again yet since then.
    is_refilling: bool = False


@dataclass(frozen=True, kw_only=True)
class ObservedPartition:
    """Who has a partition. `replicas`: the preferred leader first. `leader` -1: nobody leads."""

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

    `behind_ms`: how long ago it had all that the leader has; None: never, as far as that knows.
    """

    node_id: int
    directory_id: UUID
    behind_ms: int | None = 0


@dataclass(frozen=True, kw_only=True)
class ObservedQuorum:
    """Who leads and votes in the metadata quorum, and who only follows its log."""

    leader_id: int
    voters: tuple[ObservedReplica, ...]
    observers: tuple[ObservedReplica, ...] = ()

    def votes(self, node_id: int) -> bool:
        """Whether a node votes, with whatever disk."""
        return any(voter.node_id == node_id for voter in self.voters)


@dataclass(frozen=True, kw_only=True)
class ObservedCluster:
    """The brokers that exist. `is_reachable`: the admin client got answers."""

    cluster_id: str | None = None
    bootstrap_servers: str = ""
    brokers: tuple[ObservedBroker, ...] = ()
    #: All partitions, those of internal topics too.
    partitions: Mapping[TopicPartition, ObservedPartition] = field(default_factory=dict)
    #: Partitions whose replicas are being moved.
    reassigning: frozenset[TopicPartition] = frozenset()
    #: The replicas that are being added to these.
    adding: Mapping[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    #: Bytes of each replica, by broker; asked for while replicas move.
    sizes: Mapping[TopicPartition, Mapping[int, int]] = field(default_factory=dict)
    #: When a partition was first seen with fewer replicas in sync than it has (RFC 3339).
    out_of_sync_since: Mapping[TopicPartition, str] = field(default_factory=dict)
    #: Whether settings that brokers take while they run are set so, and are in no broker's file.
    has_live_config: bool = False
    #: Those settings as the whole cluster has them; None: not asked.
    live_config: Mapping[str, str] | None = None
    #: New replicas for partitions, so that brokers that joined get their share; None: not asked.
    balance: Mapping[TopicPartition, tuple[int, ...]] | None = None
    #: What the backend waits for, one sentence each.
    pending: tuple[str, ...] = ()
    #: Brokers that are registered, are gone, and that the backend does not know any more.
    departed: tuple[int, ...] = ()
    #: Log directories that are nearly full or have failed, a sentence each.
    full: tuple[str, ...] = ()
    #: Who votes in the metadata quorum; None: not asked, or nobody leads it now.
    quorum: ObservedQuorum | None = None
    #: The levels that features work at, by name; None: not asked.
    features: Mapping[str, int] | None = None
    #: The levels that each broker can work at, lowest and highest.
    supported_features: Mapping[int, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    #: Whether it was ever seen to serve: before that, nobody can lose anything by a restart.
    is_formed: bool = True
    is_reachable: bool = True
    #: Why it is not.
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class ObservedTopic:
    """A topic as the brokers have it. `config` holds what the topic itself overrides."""

    partitions: int
    replicas: int
    config: Mapping[str, str] = field(default_factory=_empty)
    topic_id: str = ""
    #: Partitions whose in-sync set is smaller than their replicas, and those without a leader.
    under_replicated: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ObservedMember:
    """A member of a consumer group and what it was assigned."""

    member_id: str
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...] = ()
    #: Of a static member (KIP-345); '' where it is not.
    instance_id: str = ""
    #: Which of the group's assignments it has; None in a classic group.
    epoch: int | None = None


@dataclass(frozen=True, kw_only=True)
class ObservedGroup:
    """A group: committed offsets (a share group's start offsets), the bounds of those partitions.

    `reset_offsets`: the offsets that a requested reset comes to, looked up by whoever observes
    (a timestamp becomes an offset only by asking the broker).
    """

    state: str
    members: tuple[ObservedMember, ...] = ()
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    start_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    end_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    reset_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    lag_seconds: int | None = None
    type: str = "classic"  # or consumer (KIP-848), share (KIP-932)
    #: What the brokers say themselves: a share group is done with records beyond its start, too.
    told_lag: Mapping[TopicPartition, int] = field(default_factory=dict)
    #: Who assigns partitions: `range`, `uniform`, `simple` …; '' where nobody has.
    assignor: str = ""
    #: Of members and what they subscribe to, and of the assignment; None in a classic group.
    epoch: int | None = None
    assignment_epoch: int | None = None

    @property
    def lag(self) -> Mapping[TopicPartition, int]:
        """Records that the group is not done with, for every partition that it has begun."""
        return {
            partition: self.told_lag.get(partition, max(0, self.end_offsets[partition] - offset))
            for partition, offset in self.offsets.items()
            if partition in self.end_offsets
        }

    @property
    def lag_records(self) -> int:
        """Records behind the end, all partitions together."""
        return sum(self.lag.values())

    @property
    def is_share(self) -> bool:
        """Whether members read partitions together, and acknowledge each record (KIP-932)."""
        return self.type == "share"

    @property
    def progress(self) -> Mapping[TopicPartition, int]:
        """How far it has come: its offsets, with what a share group is done with beyond them."""
        if not self.is_share:
            return self.offsets
        return {key: self.end_offsets[key] - records for key, records in self.lag.items()}


@dataclass(frozen=True, kw_only=True)
class ObservedTarget:
    """What a ConsumerGroup's `targetRef` names: how many replicas it should have and has."""

    replicas: int
    running: int = 0
    #: Why it cannot be scaled; '' where it can.
    error: str = ""
    #: Whether it is there and does not let the group scale it.
    is_refused: bool = False
    #: Whether the error is a temporary one of the API server.
    is_unknown: bool = False
    #: Why lag does not change how many there are, though it can be stopped and started.
    fixed: str = ""


@dataclass(frozen=True, kw_only=True)
class Trend:
    """What several looks at a group showed. The observer keeps it; losing it costs a delay."""

    now_ms: int
    lag_records: int = 0
    consumed_per_second: float = 0.0
    produced_per_second: float = 0.0
    #: The most that one replica worked off while there was more to do; 0: not seen yet.
    capacity_per_second: float = 0.0
    #: When replicas were changed last, by this operator.
    scaled_at_ms: int = 0
    #: What each look asked for, oldest first.
    recommendations: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ObservedApplication:
    """A process or workload of the backend. `fingerprint`: what it was started from."""

    is_running: bool
    fingerprint: str = ""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """All that is known at one moment. `cluster` is None before anything is started."""

    cluster: ObservedCluster | None = None
    topics: Mapping[str, ObservedTopic] = field(default_factory=dict)
    groups: Mapping[str, ObservedGroup] = field(default_factory=dict)
    applications: Mapping[Key, ObservedApplication] = field(default_factory=dict)
    #: By the ConsumerGroup's key. Only where the backend scales workloads itself.
    targets: Mapping[Key, ObservedTarget] = field(default_factory=dict)
    trends: Mapping[Key, Trend] = field(default_factory=dict)


Application: TypeAlias = SparkApplication | Deployment


@dataclass(frozen=True, kw_only=True)
class Desired:
    """One cluster and what refers to it. `deleted`: resources whose deletion was asked for."""

    cluster: Cluster | None = None
    topics: tuple[Topic, ...] = ()
    groups: tuple[ConsumerGroup, ...] = ()
    applications: tuple[Application, ...] = ()
    deleted: frozenset[Key] = frozenset()
    #: Namespaces that the Cluster's `allowedTopics` selects by their labels.
    selected_namespaces: frozenset[str] = frozenset()
    #: Whether these are all Topics and groups of the cluster, or some whose turn it is.
    is_complete: bool = True


@dataclass(frozen=True, kw_only=True)
class Action:
    """An effect. `resource` is whose spec asks for it."""

    resource: Key

    def describe(self) -> str:
        """One line for a dry run; lines of a change begin with what changes."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that the spec wants and that cannot or must not be done."""

    resource: Key
    reason: Reason
    message: str
    #: A stalled resource needs a change by a person; the others only say something.
    is_stalling: bool = True


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Something that will be done once what `message` names has happened."""

    resource: Key
    reason: Reason
    message: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to do, in order; what cannot be done; what is not yet possible."""

    actions: tuple[Action, ...] = ()
    problems: tuple[Problem, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    #: What would happen to the cluster once its `approvedPlan` names `hash` (updatePolicy: Plan).
    proposed: tuple[Action, ...] = ()
    #: Names what the cluster is to become. It holds while the plan is carried out step by step.
    target: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do and nothing to wait for."""
        return not self.actions and not self.waiting

    @property
    def hash(self) -> str:
        """Names what is proposed; writing it into `spec.approvedPlan` approves it."""
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
    """Return a short name of these actions, the same for the same effects."""
    text = "\n".join(repr(action) for action in actions)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
