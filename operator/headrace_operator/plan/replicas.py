"""Counts of leaders and replicas by broker. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_operator.plan.model import ObservedPartition, TopicPartition

__all__ = ["ReplicaCounts", "count_replicas"]


@dataclass(frozen=True, kw_only=True)
class ReplicaCounts:
    """By broker: leaders, replicas and in-sync replicas; and problems of partitions."""

    leaders: Counter[int] = field(default_factory=Counter)
    replicas: Counter[int] = field(default_factory=Counter)
    in_sync: Counter[int] = field(default_factory=Counter)
    under_replicated: int = 0
    offline: int = 0


def count_replicas(partitions: Mapping[TopicPartition, ObservedPartition]) -> ReplicaCounts:
    """Count over all partitions."""
    every = partitions.values()
    return ReplicaCounts(
        leaders=Counter(each.leader for each in every if each.leader >= 0),
        replicas=Counter(node_id for each in every for node_id in each.replicas),
        in_sync=Counter(node_id for each in every for node_id in each.in_sync),
        under_replicated=sum(each.is_under_replicated for each in every),
        offline=sum(each.leader < 0 for each in every),
    )
