"""The numbers of resources, and of those that are not ready and why: counted at each scrape.

Owns no number: the store and the register have the resources.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace_operator.kubernetes.api.cache import Store
    from headrace_operator.kubernetes.register import Register

__all__ = ["ResourceCollector"]

_KINDS = ("Cluster", "Topic", "ConsumerGroup")


class ResourceCollector(Collector):
    """Metrics of the watched resources."""

    def __init__(self, store: Store, register: Register) -> None:
        """Both are read at each scrape."""
        self._store = store
        self._register = register

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """See Collector."""
        totals: Counter[str] = Counter(dict.fromkeys(_KINDS, 0))
        not_ready: Counter[tuple[str, str]] = Counter()
        for kind, status, reason in self._ready_conditions():
            totals[kind] += 1
            if status != "True":
                not_ready[kind, reason] += 1
        resources = GaugeMetricFamily(
            "headrace_operator_resources", "Watched resources", labels=["kind"]
        )
        for kind, count in totals.items():
            resources.add_metric([kind], count)
        reasons = GaugeMetricFamily(
            "headrace_operator_resources_not_ready",
            "Resources whose Ready condition is not True, by reason",
            labels=["kind", "reason"],
        )
        for labels, count in not_ready.items():
            reasons.add_metric(labels, count)
        return (resources, reasons)

    def _ready_conditions(self) -> Iterator[tuple[str, str, str]]:
        """Yield kind, status and reason."""
        for kind in ("Topic", "ConsumerGroup"):
            for resource in self._register.iterate(kind):
                ready = next((c for c in resource.status.conditions if c.type == "Ready"), None)
                yield (kind, ready.status, ready.reason) if ready else (kind, "Unknown", "Pending")
        for cluster in self._store.iterate("Cluster"):
            conditions = (cluster.get("status") or {}).get("conditions", ())
            found = next((c for c in conditions if c["type"] == "Ready"), None)
            yield (
                ("Cluster", found["status"], found["reason"])
                if found
                else ("Cluster", "Unknown", "Pending")
            )
