"""`Topic`: partitions, replicas and settings of one topic of a Cluster."""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace_operator.resources.common import (
    Condition,
    ConfigValue,
    DeletionPolicy,
    Object,
    Reference,
    Spec,
)


class TopicSpec(Spec, frozen=True, kw_only=True):
    """The desired state of a topic."""

    cluster_ref: Reference
    topic_name: str | None = None
    partitions: int = 1
    #: None: the cluster's default.replication.factor, as when a client creates a topic.
    replicas: int | None = None
    config: dict[str, ConfigValue] = msgspec.field(default_factory=dict)
    #: Settings that other clients manage: never reverted, never reported.
    unmanaged_config: tuple[str, ...] = ()
    deletion_policy: DeletionPolicy = "Retain"
    drift: Literal["Enforce", "Report", "Ignore"] = "Enforce"


class TopicStatus(Spec, frozen=True, kw_only=True):
    """The observed state of a topic."""

    observed_generation: int = 0
    #: The last generation that was fully reconciled: later differences are drift.
    reconciled_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    topic_name: str | None = None
    topic_id: str | None = None
    partitions: int | None = None
    replicas: int | None = None
    pending: tuple[str, ...] = ()
    #: `*.throttled.replicas` set by spec.config: removed once the spec no longer has them.
    throttles: dict[str, str] = msgspec.field(default_factory=dict)


class Topic(Object, frozen=True, kw_only=True):
    """A topic of a Cluster."""

    spec: TopicSpec
    status: TopicStatus = TopicStatus()

    @property
    def topic_name(self) -> str:
        """The topic's name on the brokers."""
        return self.spec.topic_name or self.metadata.name
