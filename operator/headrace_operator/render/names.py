"""Names, labels and ports of a Cluster's objects. Pure.

The operator finds its objects by labels. Selectors use a part of these that never changes, because
a StatefulSet's selector is immutable.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from headrace_operator.resources import API_VERSION

if TYPE_CHECKING:
    from headrace_operator.render.identity import Node
    from headrace_operator.resources import Cluster, Pool

__all__ = [
    "CLUSTER_LABEL",
    "CONTROLLER_PORT",
    "HTTP_PORT",
    "MANAGED_BY",
    "NAME",
    "POOL_LABEL",
    "REPLICATION_PORT",
    "RESERVED_NAMES",
    "RESERVED_PORTS",
    "bootstrap_service",
    "broker_query",
    "broker_selector",
    "broker_service",
    "fitted",
    "headless_service",
    "host_of",
    "identity_name",
    "labels",
    "metadata",
    "pod_name",
    "pool_labels",
    "selector",
    "stateful_set",
]

NAME = {"app.kubernetes.io/name": "headrace"}
MANAGED_BY = {"app.kubernetes.io/managed-by": "headrace"}
INSTANCE_LABEL = "app.kubernetes.io/instance"
CLUSTER_LABEL = "headrace.dev/cluster"
POOL_LABEL = "headrace.dev/pool"
BROKER_LABEL = "headrace.dev/broker"

CONTROLLER_PORT = 9090
#: For brokers and the operator, independent of the clients' listeners.
REPLICATION_PORT = 9091
HTTP_PORT = 9404
#: Of the brokers' own listeners and ports: a pod has each name once.
RESERVED_NAMES = ("controller", "replication", "http")
RESERVED_PORTS = (CONTROLLER_PORT, REPLICATION_PORT, HTTP_PORT)

#: A label's value has at most 63 characters, and StatefulSets add a dash and ten to their names.
STATEFUL_SET_NAME_MAX = 52
LABEL_MAX = 63


def fitted(name: str, length: int = LABEL_MAX) -> str:
    """Return a name of at most `length` characters; a hash distinguishes shortened names."""
    if len(name) <= length:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: length - 9].rstrip('-.')}-{digest}"


def labels(cluster: Cluster) -> dict[str, str]:
    """Return the labels of everything that belongs to the cluster."""
    return {
        **NAME,
        "app.kubernetes.io/part-of": "headrace",
        **MANAGED_BY,
        **selector(cluster),
        INSTANCE_LABEL: fitted(cluster.metadata.name),
    }


def claim_labels(cluster: Cluster, pool: str) -> dict[str, str]:
    """Return the labels of a volume claim, which has no owner.

    If Argo CD tracks by label, it prunes objects with an instance's label that are not in Git.
    """
    every = labels(cluster) | pool_labels(cluster, pool)
    return {key: value for key, value in every.items() if key != INSTANCE_LABEL}


def selector(cluster: Cluster) -> dict[str, str]:
    """Return the labels of all that is the cluster's; users' pods may have them as well.

    A StatefulSet copies its selector's labels to its claims: see `claim_labels` for those to avoid.
    """
    return {CLUSTER_LABEL: fitted(cluster.metadata.name)}


def broker_selector(cluster: Cluster) -> dict[str, Any]:
    """Return what selects the brokers' pods, and no others of the cluster: a job's, a producer's.

    Those may carry the cluster's label too, for their series (docs/spark.md). A budget that counted
    a Spark executor, which no workload owns, would let nobody be evicted.
    """
    return {
        "matchLabels": selector(cluster),
        "matchExpressions": [{"key": POOL_LABEL, "operator": "Exists"}],
    }


def broker_query(name: str) -> str:
    """Return `broker_selector` of a Cluster of this name in the API's own notation."""
    return f"{CLUSTER_LABEL}={fitted(name)},{POOL_LABEL}"


def pool_labels(cluster: Cluster, pool: str) -> dict[str, str]:
    """Return the labels by which a pool's pods are selected."""
    return {**selector(cluster), POOL_LABEL: pool}


def metadata(cluster: Cluster, name: str, **rest: Any) -> dict[str, Any]:
    """Return metadata of an object that the garbage collector deletes with the cluster.

    This needs no operator. `blockOwnerDeletion` is left out: it needs permissions on the owner.
    """
    return {
        "name": name,
        "namespace": cluster.metadata.namespace,
        # A user's label never hides an object from the operator.
        "labels": rest.pop("labels", {}) | labels(cluster),
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": "Cluster",
                "name": cluster.metadata.name,
                "uid": cluster.metadata.uid,
                "controller": True,
            }
        ],
        **rest,
    }


def stateful_set(cluster: Cluster, pool: Pool | str) -> str:
    """Return the name of a pool's StatefulSet."""
    name = pool if isinstance(pool, str) else pool.name
    return fitted(f"{cluster.metadata.name}-{name}", STATEFUL_SET_NAME_MAX)


def pod_name(cluster: Cluster, node: Node) -> str:
    """Return the name of a broker's pod."""
    return f"{stateful_set(cluster, node.pool)}-{node.ordinal}"


def headless_service(cluster: Cluster) -> str:
    """Return the name of the headless Service of the pods."""
    return fitted(f"{cluster.metadata.name}-brokers")


def bootstrap_service(cluster: Cluster, listener: str | None = None) -> str:
    """Return the name of the bootstrap Service: one for all internal listeners."""
    suffix = f"-{listener}" if listener else ""
    return fitted(f"{cluster.metadata.name}-bootstrap{suffix}")


def broker_service(cluster: Cluster, node: Node, listener: str) -> str:
    """Return the name of the Service of one broker's external listener."""
    return fitted(f"{pod_name(cluster, node)}-{listener}")


def identity_name(cluster: Cluster) -> str:
    """Return the name of the ConfigMap with the brokers' identities."""
    return fitted(f"{cluster.metadata.name}-identity")


def host_of(cluster: Cluster, node: Node) -> str:
    """Return a pod's stable name, without the cluster's domain, which is not needed."""
    return f"{pod_name(cluster, node)}.{headless_service(cluster)}.{cluster.metadata.namespace}.svc"
