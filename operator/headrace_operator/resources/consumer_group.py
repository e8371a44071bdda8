"""`ConsumerGroup`: what a group reads, its allowed lag, and its start position."""

from __future__ import annotations

from typing import Literal

from headrace_operator.resources.common import (
    Condition,
    DeletionPolicy,
    Object,
    Reference,
    Spec,
)


class TargetReference(Spec, frozen=True, kw_only=True):
    """The workload whose pods are the group's members."""

    kind: str
    name: str
    api_version: str = "apps/v1"


class LagTarget(Spec, frozen=True, kw_only=True):
    """The group's allowed lag. Exactly one field is set."""

    max_lag_records: int | None = None
    max_lag_seconds: int | None = None
    #: At the measured rate, the whole lag must be processed within this time (`10m`).
    drain_time: str | None = None


class LagPolicy(Spec, frozen=True, kw_only=True):
    """Scales `targetRef` by lag."""

    target: LagTarget
    min_replicas: int = 1
    max_replicas: int = 1
    scale_down_delay: str = "5m"


class PartitionOffset(Spec, frozen=True, kw_only=True):
    """One partition's offset."""

    topic: str
    partition: int
    offset: int


class ResetTo(Spec, frozen=True, kw_only=True):
    """Where the group should continue. Exactly one field is set."""

    #: Kafka's own tools use lower case.
    position: Literal["Earliest", "Latest", "earliest", "latest"] | None = None
    #: The first record at or after this moment (RFC 3339).
    timestamp: str | None = None
    #: The first record within this time before now (`2h`).
    duration: str | None = None
    offsets: tuple[PartitionOffset, ...] | None = None
    #: A number of records, forward or (if negative) back from the committed offset.
    shift_by: int | None = None


class Reset(Spec, frozen=True, kw_only=True):
    """A one-time change of the group's offsets, done once per request id."""

    request_id: str
    to: ResetTo
    #: Empty: every topic of the group.
    topics: tuple[str, ...] = ()
    dry_run: bool = False
    when_active: Literal["Wait", "ScaleDown"] = "Wait"


class ConsumerGroupSpec(Spec, frozen=True, kw_only=True):
    """The desired state of a consumer group."""

    cluster_ref: Reference
    group_id: str | None = None
    #: Absent: the kind that the members create.
    type: Literal["Classic", "Consumer", "Share"] | None = None
    topics: tuple[str, ...] = ()
    target_ref: TargetReference | None = None
    lag_policy: LagPolicy | None = None
    reset: Reset | None = None
    deletion_policy: DeletionPolicy = "Retain"


class ResetStatus(Spec, frozen=True, kw_only=True):
    """The last reset. `previousOffsets` undo it: write them to `reset.to.offsets`.

    `offsets` are decided, and stored here, before the first is committed, so that another operator
    that takes over a started reset commits the same ones.
    """

    request_id: str
    state: Literal["Started", "Done"] = "Done"
    completed_at: str = ""
    dry_run: bool = False
    offsets: tuple[PartitionOffset, ...] = ()
    previous_offsets: tuple[PartitionOffset, ...] = ()


class TopicLag(Spec, frozen=True, kw_only=True):
    """One topic's share of a group's lag."""

    topic: str
    partitions: int = 0
    lag_records: int = 0


class ConsumerGroupStatus(Spec, frozen=True, kw_only=True):
    """The observed state of a consumer group."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    group_id: str | None = None
    state: str | None = None
    type: str | None = None
    members: int | None = None
    lag_records: int | None = None
    lag_seconds: int | None = None
    #: The topics with the most lag.
    topics: tuple[TopicLag, ...] = ()
    #: The replicas that a target had before a reset stopped it, and that it gets back.
    paused_replicas: int | None = None
    #: That target; None: targetRef (an older operator did not write it).
    paused_target: TargetReference | None = None
    last_reset: ResetStatus | None = None


class ConsumerGroup(Object, frozen=True, kw_only=True):
    """A consumer group of a Cluster."""

    spec: ConsumerGroupSpec
    status: ConsumerGroupStatus = ConsumerGroupStatus()

    @property
    def group_id(self) -> str:
        """The group's id on the brokers."""
        return self.spec.group_id or self.metadata.name

    @property
    def is_paused(self) -> bool:
        """Whether a workload was stopped for a reset, and not started again."""
        return self.status.paused_replicas is not None

    @property
    def present_target(self) -> TargetReference | None:
        """The workload that is stopped for a reset, whatever targetRef names since; else that."""
        return (self.status.paused_target if self.is_paused else None) or self.spec.target_ref
