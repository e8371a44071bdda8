"""The metrics of consumer groups; the broker that coordinates a group exports its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric

from headrace_broker.web.status import BrokerStatus, GroupLag, SeriesLimits

_OF_TOPICS = (
    ("kafka_consumergroup_lag_sum", "Records behind the readable end, over a topic."),
    ("kafka_consumergroup_current_offset_sum", "Sum of the committed offsets of a topic."),
    ("headrace_consumergroup_partition_lag_max", "Records behind in the worst partition."),
    ("headrace_consumergroup_partitions", "Partitions with a committed offset."),
    ("headrace_consumergroup_lagging_partitions", "Those of them that are behind."),
    (
        "headrace_consumergroup_expired_records",
        "Records that retention removed before the group read them.",
    ),
    ("headrace_consumergroup_last_commit_timestamp_seconds", "When the group last committed."),
)


@dataclass(slots=True)
class _Topic:
    """A group's sums over one topic."""

    lag: int = 0
    committed: int = 0
    lag_max: int = 0
    partitions: int = 0
    lagging: int = 0
    expired: int = 0
    last_commit_seconds: float = 0.0
    lag_seconds: float | None = None

    def add(self, item: GroupLag) -> None:
        """Add one partition."""
        self.lag += item.lag_records
        self.committed += item.committed_offset
        self.lag_max = max(self.lag_max, item.lag_records)
        self.partitions += 1
        self.lagging += item.lag_records > 0
        self.expired += item.expired_records
        self.last_commit_seconds = max(self.last_commit_seconds, item.commit_timestamp_seconds)
        if item.lag_seconds is not None:
            self.lag_seconds = max(self.lag_seconds or 0.0, item.lag_seconds)

    def values(self) -> tuple[float, ...]:
        """Return the values of `_OF_TOPICS`, in its order."""
        return (
            self.lag,
            self.committed,
            self.lag_max,
            self.partitions,
            self.lagging,
            self.expired,
            self.last_commit_seconds,
        )


class GroupMetrics:
    """The families of one collection, and how much was left out."""

    def __init__(self, limits: SeriesLimits, *, has_partitions: bool) -> None:
        self._limits = limits
        self._has_partitions = has_partitions
        self.groups_omitted = 0

    def collect(self, status: BrokerStatus) -> Iterator[Metric]:
        """Yield the families."""
        states = status.group_states()
        lags = list(status.group_lags())
        groups = sorted(
            states.keys() | {item.group for item in lags},
            # Groups with members first: leftover console groups must not displace them.
            key=lambda group: (group not in states or not states[group].members, group),
        )
        kept = set(groups[: self._limits.groups_max])
        self.groups_omitted = len(groups) - len(kept)
        shown = [item for item in lags if item.group in kept]
        yield from _topics(shown)
        if self._has_partitions:
            yield from _partitions(shown)
        members = GaugeMetricFamily(
            "kafka_consumergroup_members",
            "Members of a group of any kind.",
            labels=["consumergroup", "type", "state"],
        )
        for group, item in states.items():
            if group in kept:
                members.add_metric([group, item.type, item.state], item.members)
        yield members


def _topics(lags: list[GroupLag]) -> Iterator[Metric]:
    labels = ["consumergroup", "topic"]
    families = [GaugeMetricFamily(name, text, labels=labels) for name, text in _OF_TOPICS]
    seconds = GaugeMetricFamily(
        "kafka_consumergroup_group_lag_seconds",
        "Age of the oldest record that a group has not committed; 0 when caught up.",
        labels=labels,
    )
    topics: dict[tuple[str, str], _Topic] = defaultdict(_Topic)
    for item in lags:
        topics[item.group, item.topic].add(item)
    for key, topic in topics.items():
        for family, value in zip(families, topic.values(), strict=True):
            family.add_metric(key, value)
        if topic.lag_seconds is not None:
            seconds.add_metric(key, topic.lag_seconds)
    yield from (*families, seconds)


def _partitions(lags: list[GroupLag]) -> Iterator[Metric]:
    labels = ["consumergroup", "topic", "partition"]
    lag = GaugeMetricFamily(
        "kafka_consumergroup_lag", "Records behind the readable end.", labels=labels
    )
    committed = GaugeMetricFamily(
        "kafka_consumergroup_current_offset", "The committed offset.", labels=labels
    )
    for item in lags:
        values = [item.group, item.topic, str(item.partition)]
        lag.add_metric(values, item.lag_records)
        committed.add_metric(values, item.committed_offset)
    yield from (lag, committed)
