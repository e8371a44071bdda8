"""What is told of share groups (KIP-932), each partition by the broker that leads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headrace_broker.web.status import BrokerStatus, SeriesLimits


def share_metrics(status: BrokerStatus, limits: SeriesLimits) -> Iterator[Metric]:
    """Yield the families; groups beyond `limits` are left out."""
    totals = status.share_totals()
    kept = set(sorted(totals)[: limits.groups_max])
    in_flight: Counter[tuple[str, str]] = Counter()
    lag: Counter[tuple[str, str]] = Counter()
    for item in status.share_partitions():
        if item.group in kept:
            in_flight[item.group, item.topic] += item.records_in_flight
            lag[item.group, item.topic] += item.lag_records
    of_topics = ["sharegroup", "topic"]
    yield _gauge(
        "headrace_sharegroup_records_in_flight", "Records that members have.", of_topics, in_flight
    )
    yield _gauge(
        "headrace_sharegroup_lag",
        "Records up to the high watermark that are not done with.",
        of_topics,
        lag,
    )
    redelivered = CounterMetricFamily(
        "headrace_sharegroup_redelivered_records",
        "Records that were delivered again.",
        labels=["sharegroup"],
    )
    archived = CounterMetricFamily(
        "headrace_sharegroup_archived_records",
        "Records that were rejected, or delivered as often as they may be.",
        labels=["sharegroup"],
    )
    for group in sorted(kept):
        redelivered.add_metric([group], totals[group].redelivered)
        archived.add_metric([group], totals[group].archived)
    yield from (redelivered, archived)


def _gauge(
    name: str, text: str, labels: list[str], values: Counter[tuple[str, str]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for key, value in sorted(values.items()):
        family.add_metric(key, value)
    return family
