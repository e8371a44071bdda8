"""The metrics of share groups (KIP-932).

A group's coordinator exports its positions; the partitions' leaders export its totals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headrace_broker.web.status import (
    BrokerStatus,
    SeriesLimits,
    ShareGroupLag,
    SharePartitionStatus,
    ShareTotalsStatus,
)

_OF_TOPICS = ("sharegroup", "topic")
_OF_PARTITIONS = ("sharegroup", "topic", "partition")


def share_metrics(
    status: BrokerStatus, limits: SeriesLimits, *, has_partitions: bool
) -> Iterator[Metric]:
    """Yield the families; groups beyond `limits` are left out."""
    totals, lags = status.share_totals(), list(status.share_lags())
    groups = sorted(totals.keys() | {item.group for item in lags})
    kept = set(groups[: limits.groups_max])
    shown = [item for item in lags if item.group in kept]
    yield from _positions(shown)
    if has_partitions:
        yield from _partitions(shown)
    yield _in_flight(item for item in status.share_partitions() if item.group in kept)
    yield from _totals({group: item for group, item in totals.items() if group in kept})


def _positions(lags: list[ShareGroupLag]) -> Iterator[Metric]:
    starts: Counter[tuple[str, str]] = Counter()
    records: Counter[tuple[str, str]] = Counter()
    seconds: dict[tuple[str, str], float] = {}
    for item in lags:
        key = item.group, item.topic
        starts[key] += item.start_offset
        if item.lag_records is not None:
            records[key] += item.lag_records
        if item.lag_seconds is not None:
            seconds[key] = max(seconds.get(key, 0.0), item.lag_seconds)
    yield _gauge(
        "headrace_sharegroup_lag", "Records up to the readable end that are not done with.", records
    )
    yield _gauge(
        "headrace_sharegroup_lag_seconds",
        "Age of the oldest record that a share group is not done with; 0 when caught up.",
        seconds,
    )
    yield _gauge(
        "headrace_sharegroup_start_offset_sum",
        "Sum of the offsets below which everything is done with.",
        starts,
    )


def _partitions(lags: list[ShareGroupLag]) -> Iterator[Metric]:
    lag = GaugeMetricFamily(
        "headrace_sharegroup_partition_lag",
        "Records up to the readable end that are not done with.",
        labels=_OF_PARTITIONS,
    )
    start = GaugeMetricFamily(
        "headrace_sharegroup_start_offset",
        "The offset below which everything is done with.",
        labels=_OF_PARTITIONS,
    )
    for item in lags:
        values = [item.group, item.topic, str(item.partition)]
        start.add_metric(values, item.start_offset)
        if item.lag_records is not None:
            lag.add_metric(values, item.lag_records)
    yield from (lag, start)


def _in_flight(items: Iterator[SharePartitionStatus]) -> Metric:
    in_flight: Counter[tuple[str, str]] = Counter()
    for item in items:
        in_flight[item.group, item.topic] += item.records_in_flight
    return _gauge("headrace_sharegroup_records_in_flight", "Records that members have.", in_flight)


def _totals(totals: Mapping[str, ShareTotalsStatus]) -> Iterator[Metric]:
    redelivered = CounterMetricFamily(
        "headrace_sharegroup_redelivered_records",
        "Records that were delivered again.",
        labels=["sharegroup"],
    )
    archived = CounterMetricFamily(
        "headrace_sharegroup_archived_records",
        "Records that were given up: rejected, or delivered as often as they may be.",
        labels=["sharegroup", "reason"],
    )
    dead = CounterMetricFamily(
        "headrace_sharegroup_dead_letter_records",
        "Records that were to go to the dead-letter topic, by what became of that.",
        labels=["sharegroup", "outcome"],
    )
    for group, item in sorted(totals.items()):
        redelivered.add_metric([group], item.redelivered)
        archived.add_metric([group, "rejected"], item.rejected)
        archived.add_metric([group, "delivery_limit"], item.undeliverable)
        # From 0 on: Prometheus sees no increase in a series' first value, and raises no alert.
        dead.add_metric([group, "written"], item.dead_lettered)
        dead.add_metric([group, "lost"], item.dead_letters_lost)
    yield from (redelivered, archived, dead)


def _gauge(name: str, text: str, values: Mapping[tuple[str, str], float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=_OF_TOPICS)
    for key, value in sorted(values.items()):
        family.add_metric(key, value)
    return family
