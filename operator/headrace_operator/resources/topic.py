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
    """What the user wants of a topic."""

    cluster_ref: Reference
    topic_name: str | None = None
    partitions: int = 1
    #: None: the cluster's default.replication.factor, as when a client creates a topic.
    replicas: int | None = None
    config: dict[str, ConfigValue] = msgspec.field(default_factory=dict)
    #: Settings that others manage: never reverted, never reported.
    unmanaged_config: tuple[str, ...] = ()
    deletion_policy: DeletionPolicy = "Retain"
    drift: Literal["Enforce", "Report", "Ignore"] = "Enforce"


class TopicStatus(Spec, frozen=True, kw_only=True):
    """What is observed of a topic."""

    observed_generation: int = 0
    #: The last generation that was fully carried out: what differs since is drift.
    reconciled_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    topic_name: str | None = None
    topic_id: str | None = None
    partitions: int | None = None
    replicas: int | None = None
    pending: tuple[str, ...] = ()
    #: `*.throttled.replicas` that spec.config has set: they go when it does not say them any more.
    throttles: dict[str, str] = msgspec.field(default_factory=dict)


class Topic(Object, frozen=True, kw_only=True):
    """A topic of a Cluster."""

    spec: TopicSpec
    status: TopicStatus = TopicStatus()

    @property
    def topic_name(self) -> str:
        """The topic's name in the brokers."""
        return self.spec.topic_name or self.metadata.name
