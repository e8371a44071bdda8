"""The pods of a pool, as a StatefulSet, and their settings. Pure.

Only the operator replaces pods (OnDelete). Annotations record what each pod was made from, so that
differences from the current spec, and their reasons, can be seen later.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from headrace_operator.render.names import (
    BROKER_LABEL,
    CONTROLLER_PORT,
    HTTP_PORT,
    REPLICATION_PORT,
    claim_labels,
    fitted,
    headless_service,
    labels,
    metadata,
    pod_name,
    pool_labels,
    selector,
    stateful_set,
)
from headrace_operator.render.overlay import laid_over
from headrace_operator.render.properties import (
    DATA_DIRECTORY,
    render_properties,
    static_config,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from headrace_operator.render.identity import Identity, Node
    from headrace_operator.resources import Cluster, Pool

__all__ = [
    "CONFIG_ANNOTATION",
    "DELETION_ANNOTATION",
    "INPUTS_ANNOTATION",
    "REVISION_ANNOTATION",
    "STORAGE_DELETION_ANNOTATION",
    "pool_inputs",
    "render_pool",
    "render_settings",
    "revision_of",
    "settings_key",
]

#: What a pod was made from: a digest of all of it, of the settings, and of the rest by part.
REVISION_ANNOTATION = "headrace.dev/revision"
CONFIG_ANNOTATION = "headrace.dev/config"
INPUTS_ANNOTATION = "headrace.dev/inputs"

#: On a set: that its brokers' volumes go with the Cluster, or with a broker that is removed.
DELETION_ANNOTATION = "headrace.dev/deletion-policy"
STORAGE_DELETION_ANNOTATION = "headrace.dev/storage-deletion-policy"

#: The part of a pod's inputs that counts how often the spec was replaced before the first start.
FORMING = "forming"

SETTINGS_DIRECTORY = "/etc/headrace/broker"
#: Leaders move away in up to 10 s; then all logs are flushed.
GRACE_SECONDS = 60
#: How long a broker may recover a large log after a crash.
STARTUP_SECONDS_MAX = 3600
#: The uid of the image's own user; volumes belong to this group.
GROUP_ID = 10001


def pool_inputs(cluster: Cluster, identity: Identity, pool: Pool) -> dict[str, str]:
    """Return digests of what a pool's pods are made from, by part: they explain restarts.

    They cover inputs, not rendered objects: a newer operator that renders differently restarts no
    pods.
    """
    template = pool.pod_template
    listeners = [
        (each.name, each.port, each.type, each.tls.enabled) for each in cluster.spec.listeners
    ]
    secrets = [each.name for each in cluster.spec.image_pull_secrets]
    # Only if it is set: pods from before this field existed do not restart for it.
    forming = {FORMING: str(identity.redescribed)} if identity.redescribed else {}
    return {
        **forming,
        "image": identity.image,
        "imagePullSecrets": ",".join(secrets),
        "listeners": _digest(listeners),
        "resources": _digest([pool.resources.requests, pool.resources.limits]),
        "volumes": f"{pool.storage.type} {pool.storage.volumes}",
        "racks": ",".join(pool.racks),
        "podTemplate": _digest(
            [template.metadata.labels, template.metadata.annotations, template.spec]
        ),
    }


def revision_of(config: Mapping[str, str], inputs: Mapping[str, str]) -> str:
    """Return the digest of everything that a pod is made from."""
    return _digest([dict(config), dict(inputs)])


def settings_key(pod: str, revision: str) -> str:
    """Return the name of a pod's file of a revision: files of revisions are never mixed up."""
    return f"{pod}.{revision}.properties"


def render_settings(
    cluster: Cluster,
    identity: Identity,
    pool: Pool,
    kept: Mapping[str, str],
    nodes: Sequence[Node] | None = None,
) -> dict[str, Any]:
    """Render the ConfigMap with a file for each of the pool's brokers.

    `kept`: files of older revisions whose pods still run: their containers may restart. `nodes`:
    the brokers that may start, if these are not all.
    """
    revision = revision_of(static_config(cluster), pool_inputs(cluster, identity, pool))
    files = {
        settings_key(pod_name(cluster, node), revision): render_properties(cluster, identity, node)
        for node in (identity.pool(pool.name) if nodes is None else nodes)
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(cluster, stateful_set(cluster, pool)),
        "data": dict(kept) | files,
    }


def render_pool(
    cluster: Cluster,
    identity: Identity,
    pool: Pool,
    nodes: Sequence[Node] | None = None,
    *,
    is_shrinking: bool = False,
) -> dict[str, Any]:
    """Render a pool's StatefulSet; `nodes`: the brokers that may start, if these are not all.

    `is_shrinking`: it has pods of removed brokers. Only then it may delete claims: it does not know
    whether it was the operator who scaled it.
    """
    is_persistent = pool.storage.type == "Persistent"
    annotations = {}
    spec: dict[str, Any] = {
        "replicas": len(identity.pool(pool.name) if nodes is None else nodes),
        "serviceName": headless_service(cluster),
        # A quorum is not ready before a majority of it runs.
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "revisionHistoryLimit": 2,
        "selector": {"matchLabels": pool_labels(cluster, pool.name)},
        "template": _pod_template(cluster, identity, pool),
    }
    if is_persistent:
        spec["persistentVolumeClaimRetentionPolicy"] = {
            # Claims go with the Cluster, and not with a set that somebody deletes.
            "whenDeleted": "Retain",
            "whenScaled": pool.storage.deletion_policy if is_shrinking else "Retain",
        }
        spec["volumeClaimTemplates"] = [
            _claim(cluster, pool, number) for number in range(pool.storage.volumes)
        ]
        if cluster.spec.deletion_policy == "Delete":
            annotations[DELETION_ANNOTATION] = "Delete"
        if pool.storage.deletion_policy == "Delete":
            annotations[STORAGE_DELETION_ANNOTATION] = "Delete"
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(
            cluster,
            stateful_set(cluster, pool),
            labels=pool_labels(cluster, pool.name),
            annotations=annotations,
        ),
        "spec": spec,
    }


def _claim(cluster: Cluster, pool: Pool, number: int) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": str(pool.storage.size)}},
    }
    if pool.storage.storage_class_name is not None:
        spec["storageClassName"] = pool.storage.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": f"data-{number}",
            "labels": claim_labels(cluster, pool.name),
        },
        "spec": spec,
    }


def _pod_template(cluster: Cluster, identity: Identity, pool: Pool) -> dict[str, Any]:
    config = static_config(cluster)
    inputs = pool_inputs(cluster, identity, pool)
    revision = revision_of(config, inputs)
    own_labels = labels(cluster) | pool_labels(cluster, pool.name)
    if "broker" in pool.roles:
        own_labels[BROKER_LABEL] = "true"
    spec = laid_over(_pod_spec(cluster, identity, pool, revision), pool.pod_template.spec)
    return {
        "metadata": {
            "labels": pool.pod_template.metadata.labels | own_labels,
            "annotations": {
                **pool.pod_template.metadata.annotations,
                REVISION_ANNOTATION: revision,
                CONFIG_ANNOTATION: json.dumps(config, sort_keys=True),
                INPUTS_ANNOTATION: json.dumps(inputs, sort_keys=True),
            },
        },
        "spec": spec,
    }


def _pod_spec(cluster: Cluster, identity: Identity, pool: Pool, revision: str) -> dict[str, Any]:
    return {
        "serviceAccountName": fitted(f"{cluster.metadata.name}-brokers"),
        # A broker never uses the Kubernetes API.
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "fsGroup": GROUP_ID,
            # Changing the owner of all files of a large log takes minutes at each start.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **_pull_secrets(cluster),
        **_placement(cluster, pool),
        "containers": [_container(cluster, identity, pool, revision)],
        "volumes": _volumes(cluster, pool),
    }


def _pull_secrets(cluster: Cluster) -> dict[str, Any]:
    secrets = [{"name": each.name} for each in cluster.spec.image_pull_secrets]
    return {"imagePullSecrets": secrets} if secrets else {}


def _container(cluster: Cluster, identity: Identity, pool: Pool, revision: str) -> dict[str, Any]:
    ports = [("controller", CONTROLLER_PORT)] if "controller" in pool.roles else []
    if "broker" in pool.roles:
        ports.append(("replication", REPLICATION_PORT))
        ports += [(each.name, each.port) for each in cluster.spec.listeners]
    ports.append(("http", HTTP_PORT))
    mounts = [
        {"name": f"data-{number}", "mountPath": f"{DATA_DIRECTORY}/data-{number}"}
        for number in range(pool.storage.volumes)
    ]
    return {
        "name": "broker",
        "image": identity.image,
        "imagePullPolicy": "IfNotPresent",
        # Arguments, not the command: the image's own entrypoint forwards signals.
        "args": [
            "headrace",
            "broker",
            f"{SETTINGS_DIRECTORY}/{settings_key('$(POD_NAME)', revision)}",
        ],
        "env": [
            _field("POD_NAME", "metadata.name"),
            _field("HOST_IP", "status.hostIP"),
        ],
        "ports": [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports],
        "resources": {
            key: {name: str(amount) for name, amount in amounts.items()}
            for key, amounts in (
                ("requests", pool.resources.requests),
                ("limits", pool.resources.limits),
            )
            if amounts
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        # A broker's last error is shown in its pod's status, and in the Cluster's.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "startupProbe": _probe("/healthz", period=1, failures=STARTUP_SECONDS_MAX),
        "livenessProbe": _probe("/healthz", period=10, failures=6),
        "readinessProbe": _probe("/readyz", period=2, failures=2),
        "volumeMounts": [
            {"name": "settings", "mountPath": SETTINGS_DIRECTORY, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own, and empty
            *mounts,
        ],
    }


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _probe(path: str, *, period: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "http", "scheme": "HTTP"},
        "periodSeconds": period,
        "failureThreshold": failures,
        "timeoutSeconds": 5,
    }


def _volumes(cluster: Cluster, pool: Pool) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [
        {"name": "settings", "configMap": {"name": stateful_set(cluster, pool)}},
        {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
    ]
    if pool.storage.type == "Ephemeral":
        volumes += [
            {"name": f"data-{number}", "emptyDir": {"sizeLimit": str(pool.storage.size)}}
            for number in range(pool.storage.volumes)
        ]
    return volumes


def _placement(cluster: Cluster, pool: Pool) -> dict[str, Any]:
    """Keep brokers on different nodes, and spread them over the racks, if there are any."""
    same_cluster = {"matchLabels": selector(cluster)}
    affinity: dict[str, Any] = {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 100,
                    "podAffinityTerm": {
                        "labelSelector": same_cluster,
                        "topologyKey": "kubernetes.io/hostname",
                    },
                }
            ]
        }
    }
    if not pool.racks:
        return {"affinity": affinity}
    zone = "topology.kubernetes.io/zone"
    affinity["nodeAffinity"] = {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {
                    "matchExpressions": [
                        {"key": zone, "operator": "In", "values": sorted(pool.racks)}
                    ]
                }
            ]
        }
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": zone,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": pool_labels(cluster, pool.name)},
    }
    return {"affinity": affinity, "topologySpreadConstraints": [spread]}


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def files_in_use(data: Mapping[str, str], pods: Collection[tuple[str, str]]) -> dict[str, str]:
    """Return the files in `data` that these pods (name, revision) were started with."""
    wanted = {settings_key(*pod) for pod in pods}
    return {key: text for key, text in data.items() if key in wanted}
