"""Prometheus metrics, collected at each scrape.

Established names are kept (`kafka_consumergroup_lag` …); the rest are `headrace_*` with Prometheus'
units. Client and member ids are never labels: they are unbounded. Series with the label `partition`
are only at `/metrics`, up to a limit; `/metrics/summary` has all the others, and Headrace's rules
and dashboards need only those.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from headrace_broker.web.cluster_metrics import cluster_metrics, counter, gauge
from headrace_broker.web.group_metrics import GroupMetrics
from headrace_broker.web.partition_metrics import PartitionMetrics
from headrace_broker.web.share_metrics import share_metrics
from headrace_broker.web.status import BrokerStatus

#: There from the start: Prometheus sees no increase in a series' first value, and alerts of failed
#: writes rest on these (manifests/monitoring/rules-slo.yaml).
_FROM_ZERO = {
    "Produce": dict.fromkeys(
        (
            "NOT_ENOUGH_REPLICAS",
            "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
            "REQUEST_TIMED_OUT",
            "KAFKA_STORAGE_ERROR",
            "UNKNOWN_SERVER_ERROR",
        ),
        0,
    )
}


def build_registry(status: BrokerStatus, *, has_partitions: bool) -> CollectorRegistry:
    """Return a registry with this broker's metrics and its process's (memory, CPU, descriptors).

    `has_partitions`: include the series of single partitions.
    """
    registry = CollectorRegistry()
    registry.register(BrokerCollector(status, has_partitions=has_partitions))
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class BrokerCollector(Collector):
    """Turns a `BrokerStatus` into metric families."""

    def __init__(self, status: BrokerStatus, *, has_partitions: bool) -> None:
        self._status = status
        self._has_partitions = has_partitions

    def describe(self) -> list[Metric]:
        """Return nothing: registering must not read the broker."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        limits = self._status.series_limits()
        omitted = GaugeMetricFamily(
            "headrace_broker_metrics_omitted",
            "What has no series of its own because of headrace.metrics.*.max.",
            labels=["kind"],
        )
        yield from self._requests()
        yield from self._network()
        yield from self._node()
        yield from cluster_metrics(self._status)
        partitions = PartitionMetrics(limits, has_partitions=self._has_partitions)
        yield from partitions.collect(self._status)
        groups = GroupMetrics(limits, has_partitions=self._has_partitions)
        yield from groups.collect(self._status)
        yield from share_metrics(self._status, limits, has_partitions=self._has_partitions)
        omitted.add_metric(["topics"], partitions.topics_omitted)
        omitted.add_metric(["groups"], groups.groups_omitted)
        if self._has_partitions:
            omitted.add_metric(["partitions"], partitions.partitions_omitted)
        yield omitted

    def _requests(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "headrace_broker_requests", "Requests answered, by API.", labels=["api"]
        )
        errors = CounterMetricFamily(
            "headrace_broker_request_errors",
            "Answers with an error code, by API and Kafka's name of the code.",
            labels=["api", "error"],
        )
        seconds = HistogramMetricFamily(
            "headrace_broker_request_duration_seconds",
            "From a request's last byte in to its answer; waiting for data or commits included.",
            labels=["api"],
        )
        for api in self._status.apis():
            requests.add_metric([api.name], api.requests)
            for error, count in {**_FROM_ZERO.get(api.name, {}), **api.errors}.items():
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
            (
                "descriptor_shortages",
                "Operations on files that failed for lack of a file descriptor.",
                network.descriptor_shortages,
            ),
        ):
            yield counter(name, text, value)
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
        ):
            yield gauge(name, text, level)

    def _node(self) -> Iterator[Metric]:
        yield gauge(
            "ready", "1 when clients may be sent here.", int(not self._status.unready_reasons())
        )
        replication = self._status.replication()
        if replication is not None:
            yield from (
                counter("isr_shrinks", "In-sync sets that lost a member.", replication.isr_shrinks),
                counter("isr_expands", "In-sync sets that won one.", replication.isr_expands),
                counter(
                    "leader_elections",
                    "Elections that made this broker a leader.",
                    replication.leader_elections,
                ),
                counter(
                    "unclean_leader_elections",
                    "Those of them that may have lost committed records.",
                    replication.unclean_leader_elections,
                ),
            )
        yield from self._log_directories()

    def _log_directories(self) -> Iterator[Metric]:
        labels = ["log_directory"]
        online = GaugeMetricFamily(
            "headrace_broker_log_directory_online", "0 from its failure on.", labels=labels
        )
        free = GaugeMetricFamily(
            "headrace_broker_disk_free_bytes", "What its file system has left.", labels=labels
        )
        total = GaugeMetricFamily(
            "headrace_broker_disk_total_bytes", "What its file system holds.", labels=labels
        )
        scrubbed = CounterMetricFamily(
            "headrace_broker_log_scrub_bytes", "What the scrub has checked.", labels=labels
        )
        scrub_damage = CounterMetricFamily(
            "headrace_broker_log_scrub_damage",
            "Damaged ranges that the scrub found before any reader did.",
            labels=labels,
        )
        damaged = GaugeMetricFamily(
            "headrace_broker_log_damaged_ranges",
            "Ranges of records that are damaged and not yet replicated again.",
            labels=labels,
        )
        offline = 0
        for item in self._status.log_directories():
            offline += not item.is_online
            online.add_metric([item.path], int(item.is_online))
            if item.free_bytes is not None and item.total_bytes is not None:
                free.add_metric([item.path], item.free_bytes)
                total.add_metric([item.path], item.total_bytes)
                scrubbed.add_metric([item.path], item.scrub_bytes)
                scrub_damage.add_metric([item.path], item.scrub_damage)
                damaged.add_metric([item.path], item.damaged_ranges)
        yield from (online, free, total, scrubbed, scrub_damage, damaged)
        yield GaugeMetricFamily(
            "headrace_broker_log_directories_offline",
            "How many have failed; their partitions are out of service here.",
            value=offline,
        )


def _cumulative(buckets: tuple[float, ...], counts: tuple[int, ...]) -> list[tuple[str, float]]:
    running = 0
    cumulative: list[tuple[str, float]] = []
    for bound, count in zip((*(str(bound) for bound in buckets), "+Inf"), counts, strict=True):
        running += count
        cumulative.append((bound, running))
    return cumulative
