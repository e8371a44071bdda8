"""What StatefulSets and pods show about brokers. Pure: objects in, observations out."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace_operator.kubernetes.brokers.addresses import external_addresses, with_addresses
from headrace_operator.plan import ObservedBroker
from headrace_operator.render.names import CONTROLLER_PORT, host_of, pod_name, stateful_set
from headrace_operator.render.pods import (
    CONFIG_ANNOTATION,
    FORMING,
    INPUTS_ANNOTATION,
    pool_inputs,
)
from headrace_operator.render.properties import static_config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace_operator.kubernetes.api.transport import Object
    from headrace_operator.render.identity import Identity, Node
    from headrace_operator.resources import Cluster

__all__ = [
    "Seen",
    "failure_of",
    "is_owned",
    "is_ready",
    "is_stuck",
    "observed_broker",
    "served_from",
]

#: How long a pod may fail, with no broker answering, before its Cluster is Stalled.
STUCK_SECONDS = 60.0
WORDS_MAX = 300

#: Reasons of waiting containers that do not go away by themselves.
FAILING_REASONS = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The objects of a Cluster, by name."""

    stateful_sets: Mapping[str, Object]
    pods: Mapping[str, Object]
    services: Mapping[str, Object]
    now: dt.datetime
    #: Uids of the volume claims, by pod.
    claims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def observed_broker(cluster: Cluster, identity: Identity, node: Node, seen: Seen) -> ObservedBroker:
    """Return what is known of a broker without asking it."""
    owner = seen.stateful_sets.get(stateful_set(cluster, node.pool))
    pod = seen.pods.get(pod_name(cluster, node))
    replicas = owner["spec"].get("replicas", 1) if owner is not None else 0
    wanted = static_config(cluster)
    if pod is not None and pod["metadata"].get("deletionTimestamp"):
        pod = None
    if pod is not None and node.succeeds is not None and pod["metadata"]["uid"] in node.given_up:
        # It is another broker's still.
        pod = None
    annotations = (pod or {}).get("metadata", {}).get("annotations") or {}
    # A missing or terminating pod will be made from the present template.
    config = _recorded(annotations, CONFIG_ANNOTATION) if pod else wanted
    return ObservedBroker(
        node_id=node.node_id,
        pool=node.pool,
        roles=node.roles,
        config=config,
        is_running=node.ordinal < replicas,
        is_registered=is_ready(pod),
        is_ready=is_ready(pod),
        address=pod_name(cluster, node),
        controller_address=(
            f"{host_of(cluster, node)}:{CONTROLLER_PORT}" if node.is_controller else ""
        ),
        rack=node.rack,
        placed_rack=node.rack if any(p.racks for p in cluster.spec.pools) else None,
        ordinal=node.ordinal,
        outdated=_outdated(cluster, identity, node, annotations) if pod else (),
        # From the present Services: a pass that only shows a plan has not stored them.
        addresses=(
            external_addresses(cluster, with_addresses(cluster, node, seen.services))
            if pod and node.is_broker
            else {}
        ),
        process=_process_of(pod),
        failing=failure_of(pod),
        is_stuck=is_stuck(pod, seen.now),
        replacement=node.replacement,
        is_refilling=bool(node.given_up),
        succeeds=node.succeeds,
        is_voter=node.node_id in identity.voters if identity.voters else None,
        is_disk_lost=_is_disk_lost(identity, node, seen.claims.get(pod_name(cluster, node), ())),
    )


def _recorded(annotations: Mapping[str, str], name: str) -> dict[str, str]:
    """Return what a pod was made from; {} if that is not recorded or has been overwritten."""
    try:
        found = json.loads(annotations.get(name, "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_disk_lost(identity: Identity, node: Node, claims: tuple[str, ...]) -> bool:
    """Whether all volumes that a broker served from are gone."""
    known = identity.disks.get(str(node.node_id), ())
    return bool(known) and not set(known) & set(claims)


def served_from(pod: Object | None, claims: Sequence[Object]) -> bool:
    """Whether a pod runs with these claims: all of them were there before its container began."""
    if not is_ready(pod):
        return False
    statuses = (pod or {}).get("status", {}).get("containerStatuses") or []
    began = [(each.get("state") or {}).get("running", {}).get("startedAt", "") for each in statuses]
    newest = max((each["metadata"].get("creationTimestamp") or "" for each in claims), default="")
    return bool(began) and all(newest <= each for each in began)


def is_owned(obj: Object, *uids: str) -> bool:
    """Whether one of these uids owns the object."""
    owners: list[dict[str, Any]] = obj["metadata"].get("ownerReferences") or []
    return any(owner["uid"] in uids for owner in owners)


def is_ready(pod: Object | None) -> bool:
    """Whether a pod is ready, and not terminating."""
    if pod is None or pod["metadata"].get("deletionTimestamp"):
        return False
    conditions: list[dict[str, Any]] = pod.get("status", {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def failure_of(pod: Object | None) -> str:
    """Return why a pod will not run as it is; '' for one that runs, starts or recovers."""
    status = (pod or {}).get("status", {})
    initial = status.get("initContainerStatuses") or []
    for container in (*initial, *(status.get("containerStatuses") or [])):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in FAILING_REASONS:
            ended = (container.get("lastState") or {}).get("terminated") or {}
            code = f", exit code {ended['exitCode']}" if ended else ""
            # A container that is killed for lack of memory leaves no message.
            code += ", OOMKilled" if ended.get("reason") == "OOMKilled" else ""
            said = ended.get("message") or waiting.get("message") or ""
            return f"{_whose(container, initial)}{waiting['reason']}{code}{_last_words(said)}"
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"{condition.get('reason', '')}: {condition.get('message', '')}"
    return ""


def _whose(container: Object, initial: Sequence[Object]) -> str:
    """Name a container that is not the broker's own: a podTemplate may add others."""
    name = container.get("name", "broker")
    if name == "broker":
        return ""
    return f"{'init container' if container in initial else 'container'} {name}: "


def _last_words(text: str) -> str:
    """Return the last line of a container's output: the error itself, after any traceback."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f": {lines[-1][:WORDS_MAX]}" if lines else ""


def is_stuck(pod: Object | None, now: dt.datetime) -> bool:
    """Whether a pod has failed for long enough: volumes and images take a while."""
    if pod is None or not failure_of(pod):
        return False
    began = dt.datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
    return (now - began).total_seconds() >= STUCK_SECONDS


def _process_of(pod: Object | None) -> str:
    """Identify the pod's process: its container may have restarted."""
    if pod is None:
        return ""
    containers = pod.get("status", {}).get("containerStatuses") or []
    starts = ",".join(str(each.get("containerID", "")) for each in containers)
    return f"{pod['metadata']['uid']} {starts}"


def _outdated(
    cluster: Cluster, identity: Identity, node: Node, annotations: Mapping[str, str]
) -> tuple[str, ...]:
    """Return what else, besides settings, differs from what the pod was made from."""
    pool = next((pool for pool in cluster.spec.pools if pool.name == node.pool), None)
    if pool is None:
        return ()
    wanted = pool_inputs(cluster, identity, pool)
    has = {FORMING: "0"} | _recorded(annotations, INPUTS_ANNOTATION)
    # Whether a value says anything to a reader: a digest does not.
    shown = {"image", "imagePullSecrets", "volumes", "racks"}
    return tuple(
        f"{part}: {has.get(part)} -> {value}" if part in shown else f"{part} changed"
        for part, value in wanted.items()
        # A part that an older operator did not record causes no restart.
        if part in has and has[part] != value
    )
