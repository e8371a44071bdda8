"""The metrics of topics and partitions.

Only its leader exports a partition's offsets, so sums over brokers count nothing twice. Sizes are
each replica's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from headrace_broker.web.status import BrokerStatus, PartitionStatus, SeriesLimits

_OF_LEADERS = (
    ("kafka_topic_partition_current_offset", "The next offset that consumers may read up to."),
    ("kafka_topic_partition_oldest_offset", "The first offset that is kept."),
    ("kafka_topic_partition_leader", "The id of the leading broker."),
    ("kafka_topic_partition_leader_is_preferred", "1 where the first replica leads."),
    ("kafka_topic_partition_replicas", "Replicas of the partition."),
    ("kafka_topic_partition_in_sync_replica", "Replicas of it that are in sync."),
    ("kafka_topic_partition_under_replicated_partition", "1 where not all are in sync."),
)


class PartitionMetrics:
    """The families of one collection, and how much was left out."""

    def __init__(self, limits: SeriesLimits, *, has_partitions: bool) -> None:
        self._limits = limits
        self._has_partitions = has_partitions
        self.topics_omitted = 0
        self.partitions_omitted = 0

    def collect(self, status: BrokerStatus) -> Iterator[Metric]:
        """Yield the families."""
        by_topic: dict[str, list[PartitionStatus]] = defaultdict(list)
        for item in status.partitions():
            by_topic[item.topic].append(item)
        every = [item for items in by_topic.values() for item in items]
        led = [item for item in every if item.is_leader]
        for name, text, count in (
            ("partitions", "Replicas on this broker.", len(every)),
            ("leaders", "Partitions that this broker leads.", len(led)),
            (
                "under_replicated_partitions",
                "Led partitions with a replica out of sync.",
                sum(item.is_under_replicated for item in led),
            ),
            (
                "under_min_isr_partitions",
                "Led partitions below min.insync.replicas.",
                sum(item.in_sync_replicas < item.min_in_sync_replicas for item in led),
            ),
            (
                "at_min_isr_partitions",
                "Led, replicated partitions that the next failure makes read-only.",
                sum(
                    item.in_sync_replicas == item.min_in_sync_replicas < item.replicas
                    for item in led
                ),
            ),
        ):
            yield GaugeMetricFamily(f"headrace_broker_{name}", text, value=count)
        yield from self._topics(by_topic)
        yield from self._partitions_of_topics(status)
        if self._has_partitions:
            yield from self._partitions(every)

    def _partitions_of_topics(self, status: BrokerStatus) -> Iterator[Metric]:
        """Yield the topics' numbers of partitions, from the active controller."""
        controller = status.controller()
        family = GaugeMetricFamily("kafka_topic_partitions", "Partitions of it.", labels=["topic"])
        topics = {} if controller is None else controller.partitions_by_topic
        for topic in sorted(topics)[: self._limits.topics_max]:
            family.add_metric([topic], topics[topic])
        yield family

    def _topics(self, by_topic: dict[str, list[PartitionStatus]]) -> Iterator[Metric]:
        labels = ["topic"]
        size = GaugeMetricFamily(
            "headrace_topic_log_size_bytes", "Size of its logs on this broker.", labels=labels
        )
        end = GaugeMetricFamily(
            "headrace_topic_current_offset_sum",
            "Sum of the end offsets of its partitions that this broker leads.",
            labels=labels,
        )
        start = GaugeMetricFamily(
            "headrace_topic_oldest_offset_sum", "Sum of their first offsets.", labels=labels
        )
        behind = GaugeMetricFamily(
            "headrace_topic_under_replicated_partitions",
            "Those of them with a replica out of sync.",
            labels=labels,
        )
        retention = GaugeMetricFamily(
            "headrace_topic_retention_seconds",
            "retention.ms; not there where age removes nothing.",
            labels=labels,
        )
        kept = sorted(by_topic)[: self._limits.topics_max]
        self.topics_omitted = len(by_topic) - len(kept)
        for topic in kept:
            items = by_topic[topic]
            size.add_metric([topic], sum(item.size_bytes for item in items))
            led = [item for item in items if item.is_leader]
            if not led:
                continue
            end.add_metric([topic], sum(item.high_watermark for item in led))
            start.add_metric([topic], sum(item.log_start_offset for item in led))
            behind.add_metric([topic], sum(item.is_under_replicated for item in led))
            if led[0].retention_seconds is not None:
                retention.add_metric([topic], led[0].retention_seconds)
        yield from (size, end, start, behind, retention)

    def _partitions(self, every: list[PartitionStatus]) -> Iterator[Metric]:
        labels = ["topic", "partition"]
        size = GaugeMetricFamily(
            "headrace_broker_log_size_bytes", "Size of the log on disk.", labels=labels
        )
        families = [GaugeMetricFamily(name, text, labels=labels) for name, text in _OF_LEADERS]
        kept = sorted(every, key=lambda item: (item.topic, item.partition))
        kept = kept[: self._limits.partitions_max]
        self.partitions_omitted = len(every) - len(kept)
        for item in kept:
            at = [item.topic, str(item.partition)]
            size.add_metric(at, item.size_bytes)
            if not item.is_leader:
                continue
            for family, value in zip(families, _values(item), strict=True):
                family.add_metric(at, value)
        yield from (size, *families)


def _values(item: PartitionStatus) -> tuple[int, ...]:
    """Return the values of `_OF_LEADERS`, in its order."""
    return (
        item.high_watermark,
        item.log_start_offset,
        item.leader,
        int(item.is_preferred_leader),
        item.replicas,
        item.in_sync_replicas,
        int(item.is_under_replicated),
    )
