"""Prometheus metrics, collected when somebody scrapes.

Names that people know are kept (`kafka_consumergroup_lag` …); the rest are `headrace_broker_*` with
Prometheus' units. Client and member ids are never labels: they are unbounded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from headrace_broker.web.status import BrokerStatus


def build_registry(status: BrokerStatus) -> CollectorRegistry:
    """Return a registry with this broker's metrics and its process's (memory, CPU, descriptors)."""
    registry = CollectorRegistry()
    registry.register(BrokerCollector(status))
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class BrokerCollector(Collector):
    """Turns a `BrokerStatus` into metric families."""

    def __init__(self, status: BrokerStatus) -> None:
        self._status = status

    def describe(self) -> list[Metric]:
        """Say nothing ahead: registering must not read the broker."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        yield from self._requests()
        yield from self._network()
        yield from self._partitions()
        yield from self._groups()

    def _requests(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "headrace_broker_requests", "Requests answered, by API.", labels=["api"]
        )
        errors = CounterMetricFamily(
            "headrace_broker_request_errors",
            "Error codes in answers, by API and Kafka's name of the code.",
            labels=["api", "error"],
        )
        seconds = HistogramMetricFamily(
            "headrace_broker_request_duration_seconds",
            "From a request's last byte in to its answer; waiting for data or commits included.",
            labels=["api"],
        )
        for api in self._status.apis():
            requests.add_metric([api.name], api.requests)
            for error, count in api.errors.items():
                errors.add_metric([api.name, error], count)
            if api.requests:
                seconds.add_metric(
                    [api.name], _cumulative(api.buckets, api.bucket_counts), api.seconds_sum
                )
        yield from (requests, errors, seconds)

    def _network(self) -> Iterator[Metric]:
        network = self._status.network()
        traffic = CounterMetricFamily(
            "headrace_broker_network_bytes",
            "Bytes of the clients' connections.",
            labels=["direction"],
        )
        traffic.add_metric(["in"], network.bytes_in)
        traffic.add_metric(["out"], network.bytes_out)
        yield traffic
        for name, text, value in (
            ("connections_opened", "Connections accepted.", network.connections_opened),
            (
                "connections_refused",
                "Connections refused over a limit.",
                network.connections_refused,
            ),
            (
                "malformed_requests",
                "Connections closed over a malformed request.",
                network.malformed_requests,
            ),
            (
                "slow_readers_closed",
                "Clients that did not read their answers.",
                network.slow_readers_closed,
            ),
        ):
            yield CounterMetricFamily(f"headrace_broker_{name}", text, value=value)
        for name, text, level in (
            ("connections", "Open connections.", network.connections),
            ("fetch_sessions", "Fetch sessions that are kept (KIP-227).", network.fetch_sessions),
            (
                "event_loop_delay_seconds",
                "How late the event loop woke, lately.",
                network.event_loop_delay_seconds,
            ),
            (
                "event_loop_delay_seconds_max",
                "The latest it woke since the start.",
                network.event_loop_delay_seconds_max,
            ),
            (
                "ready",
                "1 when clients may be sent here.",
                0 if self._status.unready_reasons() else 1,
            ),
        ):
            yield GaugeMetricFamily(f"headrace_broker_{name}", text, value=level)

    def _partitions(self) -> Iterator[Metric]:
        labels = ["topic", "partition"]
        end = GaugeMetricFamily(
            "kafka_topic_partition_current_offset",
            "The next offset that consumers may read up to.",
            labels=labels,
        )
        start = GaugeMetricFamily(
            "kafka_topic_partition_oldest_offset", "The first offset that is kept.", labels=labels
        )
        size = GaugeMetricFamily(
            "headrace_broker_log_size_bytes", "Size of the log on disk.", labels=labels
        )
        leaders = under_replicated = under_minimum = total = 0
        for item in self._status.partitions():
            values = [item.topic, str(item.partition)]
            end.add_metric(values, item.high_watermark)
            start.add_metric(values, item.log_start_offset)
            size.add_metric(values, item.size_bytes)
            total += 1
            if item.is_leader:
                leaders += 1
                under_replicated += item.in_sync_replicas < item.replicas
                under_minimum += item.in_sync_replicas < item.min_in_sync_replicas
        yield from (end, start, size)
        for name, text, count in (
            ("partitions", "Replicas on this broker.", total),
            ("leaders", "Partitions that this broker leads.", leaders),
            (
                "under_replicated_partitions",
                "Led partitions with a replica out of sync.",
                under_replicated,
            ),
            (
                "under_min_isr_partitions",
                "Led partitions below min.insync.replicas.",
                under_minimum,
            ),
        ):
            yield GaugeMetricFamily(f"headrace_broker_{name}", text, value=count)

    def _groups(self) -> Iterator[Metric]:
        labels = ["consumergroup", "topic", "partition"]
        lag = GaugeMetricFamily(
            "kafka_consumergroup_lag", "Records behind the readable end.", labels=labels
        )
        committed = GaugeMetricFamily(
            "kafka_consumergroup_current_offset", "The committed offset.", labels=labels
        )
        total = GaugeMetricFamily(
            "kafka_consumergroup_lag_sum",
            "Records behind, over a topic.",
            labels=["consumergroup", "topic"],
        )
        seconds = GaugeMetricFamily(
            "kafka_consumergroup_group_lag_seconds",
            "Age of the oldest record that a group has not committed; 0 when caught up.",
            labels=["consumergroup", "topic"],
        )
        sums: dict[tuple[str, str], int] = defaultdict(int)
        ages: dict[tuple[str, str], float] = defaultdict(float)
        for item in self._status.group_lags():
            values = [item.group, item.topic, str(item.partition)]
            lag.add_metric(values, item.lag_records)
            committed.add_metric(values, item.committed_offset)
            key = item.group, item.topic
            sums[key] += item.lag_records
            ages[key] = max(ages[key], item.lag_seconds)
        for (group, topic), count in sums.items():
            total.add_metric([group, topic], count)
            seconds.add_metric([group, topic], ages[group, topic])
        members = GaugeMetricFamily(
            "kafka_consumergroup_members", "Members of a group.", labels=["consumergroup", "state"]
        )
        for group, (state, count) in self._status.group_states().items():
            members.add_metric([group, state], count)
        yield from (lag, committed, total, seconds, members)


def _cumulative(buckets: tuple[float, ...], counts: tuple[int, ...]) -> list[tuple[str, float]]:
    running = 0
    cumulative: list[tuple[str, float]] = []
    for bound, count in zip((*(str(bound) for bound in buckets), "+Inf"), counts, strict=True):
        running += count
        cumulative.append((bound, running))
    return cumulative
