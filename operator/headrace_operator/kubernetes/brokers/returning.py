"""Whether a broker's pod could be recreated, checked before it is deleted.

The API server answers this: a dry run of the pod's creation goes through admission (service
account, quota, Pod Security, policies, webhooks) and fails only on the name, which the pod still
has. A dry run does not tell whether a node has room. A volume bound to a cordoned node counts as a
refusal.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from headrace_operator.kubernetes.api.client import KubernetesError
from headrace_operator.kubernetes.brokers.losses import hostname_of
from headrace_operator.kubernetes.brokers.storage import quantity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_operator.kubernetes.api.client import KubernetesClient
    from headrace_operator.kubernetes.api.transport import Object

__all__ = ["check_admission", "is_only_full", "next_pod", "why_not_placed"]

_QUOTA = re.compile(
    r"exceeded quota: [^,]+, requested: .+, used: (?P<used>.+), limited: (?P<limited>.+)$"
)


async def check_admission(client: KubernetesClient, stateful_set: Object, pod: Object) -> None:
    """Check that the set's controller could create the pod. Raises KubernetesError if not."""
    try:
        await client.create(next_pod(stateful_set, pod["metadata"]["name"]), is_dry_run=True)
    except KubernetesError as error:
        if error.is_conflict or is_only_full(error.message):
            return
        raise


async def why_not_placed(client: KubernetesClient, pod: Object) -> str:
    """Return why no node would accept the pod again; '' if one may, or nodes cannot be read."""
    node = pod["spec"].get("nodeName", "")
    try:
        machine = await client.get("v1", "Node", None, node) if node else None
        if not (machine or {}).get("spec", {}).get("unschedulable"):
            return ""
        for volume in pod["spec"].get("volumes") or []:
            name = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            if name and await _is_bound(client, pod["metadata"]["namespace"], name, node):
                return f"volume {name} is on node {node}, which takes no pod: it is cordoned"
    except KubernetesError as error:
        if not error.is_forbidden:
            raise
    return ""


async def _is_bound(client: KubernetesClient, namespace: str, claim: str, node: str) -> bool:
    found = await client.get("v1", "PersistentVolumeClaim", namespace, claim)
    volume = (found or {}).get("spec", {}).get("volumeName")
    live = await client.get("v1", "PersistentVolume", None, volume) if volume else None
    return hostname_of(live or {}) == node


def is_only_full(message: str) -> bool:
    """Whether a quota refuses only because the pod itself still counts. Pure."""
    found = _QUOTA.search(message)
    if found is None:
        return False
    used, limited = _amounts(found["used"]), _amounts(found["limited"])
    return all(name in limited and quantity(used[name]) <= quantity(limited[name]) for name in used)


def _amounts(text: str) -> Mapping[str, str]:
    pairs = (each.split("=", 1) for each in text.split(",") if "=" in each)
    return {name.strip(): value.strip() for name, value in pairs}


def next_pod(stateful_set: Object, name: str) -> Object:
    """Return the pod of this name as the set's controller would create it. Pure."""
    template = stateful_set["spec"]["template"]
    claims = stateful_set["spec"].get("volumeClaimTemplates") or []
    volumes: list[dict[str, Any]] = [
        {
            "name": each["metadata"]["name"],
            "persistentVolumeClaim": {"claimName": f"{each['metadata']['name']}-{name}"},
        }
        for each in claims
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": stateful_set["metadata"]["namespace"],
            "labels": template["metadata"].get("labels", {}),
            "annotations": template["metadata"].get("annotations", {}),
        },
        "spec": {
            **template["spec"],
            "volumes": [*(template["spec"].get("volumes") or []), *volumes],
        },
    }
