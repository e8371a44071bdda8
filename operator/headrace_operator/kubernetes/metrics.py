"""The operator's own metrics, for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

if TYPE_CHECKING:
    from headrace_operator.kubernetes.api.rights import Right
    from headrace_operator.kubernetes.api.transport import Write

__all__ = ["OperatorMetrics"]

_CREATED = 201
_DURATIONS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class OperatorMetrics:
    """Counters, gauges and histograms in a separate registry."""

    def __init__(self) -> None:
        """Create all metrics; names are part of the product (manifests/monitoring)."""
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._make_own(registry)
        self._make_watch_metrics(registry)

    def _make_own(self, registry: CollectorRegistry) -> None:
        self.queue_depth = Gauge(
            "headrace_operator_queue_depth",
            "Keys that are due and not worked on",
            registry=registry,
        )
        self.reconciliations = Counter(
            "headrace_operator_reconciliations",
            "Reconciliations by kind and result (success, retry, error, fenced)",
            ["kind", "result"],
            registry=registry,
        )
        self.reconcile_seconds = Histogram(
            "headrace_operator_reconcile_duration_seconds",
            "How long reconciliations take",
            ["kind", "scope"],
            buckets=_DURATIONS,
            registry=registry,
        )
        self.last_success = Gauge(
            "headrace_operator_last_success_timestamp_seconds",
            "When a key was last reconciled without an error",
            ["kind", "namespace", "name"],
            registry=registry,
        )
        self.writes = Counter(
            "headrace_operator_kubernetes_writes",
            "Writes to the Kubernetes API; a steady rate on unchanged input is a runaway",
            ["verb", "kind", "status"],
            registry=registry,
        )
        self.requests = Counter(
            "headrace_operator_kubernetes_requests",
            "Requests to the Kubernetes API by the right that they need; watches are not counted",
            ["verb", "resource", "status"],
            registry=registry,
        )
        self.actions = Counter(
            "headrace_operator_actions",
            "Actions on brokers, topics and groups, by kind and result",
            ["action", "result"],
            registry=registry,
        )
        self.is_leader = Gauge(
            "headrace_operator_leader", "1 while this process holds the lease", registry=registry
        )

    def _make_watch_metrics(self, registry: CollectorRegistry) -> None:
        self.watch_age = Gauge(
            "headrace_operator_watch_stale_seconds",
            "For how long a watch has lacked what a list shows",
            ["kind"],
            registry=registry,
        )
        self.watch_repairs = Counter(
            "headrace_operator_watch_repairs",
            "Deletions that a watch missed and a list showed",
            ["kind"],
            registry=registry,
        )

    def forget(self, key: tuple[str, str, str]) -> None:
        """Drop the series of a key (kind, namespace and name) that is gone."""
        self.last_success.remove(*key)

    def count_write(self, write: Write) -> None:
        """Count a write to the API."""
        self.writes.labels(write.verb, write.kind, str(write.status)).inc()

    def count_request(self, right: Right, status: int) -> None:
        """Count a request to the API, by the right that it needs."""
        self.requests.labels(right.verb, right.resource, str(status)).inc()
        if right.verb == "patch" and status == _CREATED:
            # A server-side apply of a missing object needs both rights.
            self.requests.labels("create", right.resource, str(status)).inc()
