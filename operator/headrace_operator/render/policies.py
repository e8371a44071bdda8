"""Objects around brokers: disruption budget, network policy, service account, monitoring. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_operator.render.names import (
    CONTROLLER_PORT,
    HTTP_PORT,
    REPLICATION_PORT,
    broker_selector,
    fitted,
    metadata,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_operator.resources import Cluster

__all__ = ["POD_MONITOR", "render_pod_monitor", "render_policies"]

#: Exists only if the Prometheus operator is installed.
POD_MONITOR = ("monitoring.coreos.com/v1", "PodMonitor")
OPERATOR_LABELS = {"app.kubernetes.io/name": "headrace-operator"}


def render_policies(cluster: Cluster) -> Iterator[dict[str, Any]]:
    """Render the objects of every cluster."""
    name = cluster.metadata.name
    yield {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(cluster, fitted(f"{name}-brokers")),
        "automountServiceAccountToken": False,
    }
    yield {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(cluster, fitted(f"{name}-brokers")),
        # One at a time, in all pools: partitions have replicas in all of them.
        "spec": {
            "maxUnavailable": 1,
            # Kubernetes' default, set explicitly so that another value is corrected: a recovering
            # broker must not be evicted while another is down.
            "unhealthyPodEvictionPolicy": "IfHealthyBudget",
            "selector": broker_selector(cluster),
        },
    }
    yield {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(cluster, fitted(f"{name}-brokers")),
        "spec": {
            "podSelector": broker_selector(cluster),
            "policyTypes": ["Ingress"],
            "ingress": _ingress(cluster),
        },
    }


def _ingress(cluster: Cluster) -> list[dict[str, Any]]:
    brokers = {"podSelector": broker_selector(cluster)}
    operator = {"namespaceSelector": {}, "podSelector": {"matchLabels": OPERATOR_LABELS}}
    listeners = [_port(each.port) for each in cluster.spec.listeners]
    return [
        {"ports": listeners},
        {"ports": [_port(CONTROLLER_PORT)], "from": [brokers]},
        {"ports": [_port(REPLICATION_PORT)], "from": [brokers, operator]},
        # Probes come from the node, scrapes from any Prometheus.
        {"ports": [_port(HTTP_PORT)]},
    ]


def _port(port: int) -> dict[str, Any]:
    return {"port": port, "protocol": "TCP"}


def render_pod_monitor(cluster: Cluster) -> dict[str, Any]:
    """Render the PodMonitor that has Prometheus scrape the brokers."""
    api_version, kind = POD_MONITOR
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": metadata(
            cluster,
            fitted(f"{cluster.metadata.name}-brokers"),
            labels=cluster.spec.monitoring.labels,
        ),
        "spec": {
            "selector": broker_selector(cluster),
            "podMetricsEndpoints": [
                {
                    "port": "http",
                    # Without the series of single partitions, which rules and dashboards do not
                    # need.
                    "path": "/metrics/summary",
                    "interval": cluster.spec.monitoring.interval,
                    "relabelings": [
                        {
                            "sourceLabels": [f"__meta_kubernetes_pod_label_headrace_dev_{part}"],
                            "targetLabel": f"headrace_{part}",
                        }
                        for part in ("cluster", "pool")
                    ],
                }
            ],
        },
    }
