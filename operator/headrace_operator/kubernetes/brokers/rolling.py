"""Restarts one broker's pod. Which one, and when, is the plan's business.

The pod ends as in any deletion: on SIGTERM the broker first hands on its leaders. It is
evicted rather than deleted, so that a node's drain at the same moment is counted; and only this pod
is, by its uid, so that one that took its place meanwhile, and recovers, is left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_operator.kubernetes.api.client import KubernetesError
from headrace_operator.kubernetes.brokers.observed import is_ready
from headrace_operator.kubernetes.brokers.returning import check_admission, why_not_placed
from headrace_operator.render.pods import REVISION_ANNOTATION

if TYPE_CHECKING:
    from headrace_operator.kubernetes.api.client import KubernetesClient
    from headrace_operator.kubernetes.api.transport import Object

__all__ = ["restart_pod"]

_TOO_MANY_REQUESTS = 429


async def restart_pod(client: KubernetesClient, stateful_set: Object, pod: Object | None) -> str:
    """Have the pod recreated; return what has to happen before, or ''.

    One that serves is taken away only when another could be made. Raises KubernetesError.
    """
    if pod is None or pod["metadata"].get("deletionTimestamp"):
        return ""
    name = pod["metadata"]["name"]
    status = stateful_set.get("status", {})
    if status.get("observedGeneration", 0) < stateful_set["metadata"]["generation"]:
        # Its controller would make the pod from the old template again.
        return f"StatefulSet {stateful_set['metadata']['name']} has not seen its new template yet"
    if not is_ready(pod):
        await client.delete(
            {"apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"]},
            uid=pod["metadata"]["uid"],
        )
        return ""
    await check_admission(client, stateful_set, pod)
    if reason := await why_not_placed(client, pod):
        return f"{name} is not restarted: {reason}"
    try:
        evicted = await client.evict(pod["metadata"]["namespace"], name, uid=pod["metadata"]["uid"])
    except KubernetesError as error:
        if error.is_conflict:
            return ""
        raise
    return "" if evicted else f"the PodDisruptionBudget does not allow to evict {name} now"


def revision_of_pod(pod: Object) -> str:
    """Return what a pod was made from."""
    annotations = pod["metadata"].get("annotations") or {}
    return str(annotations.get(REVISION_ANNOTATION, ""))
