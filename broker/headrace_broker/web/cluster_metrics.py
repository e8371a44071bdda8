"""The metadata quorum as this node sees it, and the cluster as the active controller sees it.

Only the active controller exports metrics of the whole cluster, so that each exists once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.metadata import version

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from headrace_broker.web.status import BrokerStatus


def gauge(name: str, text: str, value: float) -> Metric:
    """Return a gauge of this node."""
    return GaugeMetricFamily(f"headrace_broker_{name}", text, value=value)


def counter(name: str, text: str, value: float) -> Metric:
    """Return a counter of this node."""
    return CounterMetricFamily(f"headrace_broker_{name}", text, value=value)


def cluster_metrics(status: BrokerStatus) -> Iterator[Metric]:
    """Yield the families."""
    info = GaugeMetricFamily(
        "headrace_broker_info", "Always 1: who this node is.", labels=["node_id", "version"]
    )
    info.add_metric([str(status.node_id()), _version()], 1)
    yield info
    quorum = status.quorum()
    if quorum is not None:
        yield from (
            gauge(
                "quorum_has_leader", "1 while this node knows a leader.", int(quorum.leader >= 0)
            ),
            gauge("quorum_epoch", "The leader epoch of the metadata quorum.", quorum.epoch),
            gauge(
                "metadata_applied_offset",
                "The last record of the metadata log that this node acts on.",
                quorum.applied_offset,
            ),
        )
    controller = status.controller()
    yield gauge("active_controller", "1 on the active controller.", 0 if controller is None else 1)
    if controller is None:
        return
    for name, text, value in (
        ("brokers_active", "Brokers that may lead partitions.", controller.brokers_active),
        ("brokers_fenced", "Registered brokers that may not.", controller.brokers_fenced),
        ("partitions", "Partitions of the cluster.", controller.partitions),
        ("offline_partitions", "Partitions without a leader.", controller.offline_partitions),
        (
            "partitions_not_led_by_preferred",
            "Partitions that another replica than the first leads.",
            controller.partitions_not_led_by_preferred,
        ),
        (
            "reassigning_partitions",
            "Partitions whose replicas are being moved.",
            controller.reassigning_partitions,
        ),
        ("topics", "Topics of the cluster.", len(controller.partitions_by_topic)),
    ):
        yield GaugeMetricFamily(f"headrace_cluster_{name}", text, value=value)


@cache
def _version() -> str:
    """Return this program's version; it is read from disk."""
    return version("headrace")
