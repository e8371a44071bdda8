"""Restarts one broker's pod. The plan decides which one, and when.

The pod terminates as in any deletion: on SIGTERM the broker first hands over its leaders. It is
evicted and not deleted, so that budgets count a simultaneous drain of a node. The eviction names
the pod's uid, so that a pod that replaced it meanwhile, and recovers, is left alone.
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
    """Have the pod recreated; return what must happen first, or ''.

    A serving pod is evicted only if a new one could be created. Raises KubernetesError.
    """
    if pod is None or pod["metadata"].get("deletionTimestamp"):
        return ""
    name = pod["metadata"]["name"]
    status = stateful_set.get("status", {})
    if status.get("observedGeneration", 0) < stateful_set["metadata"]["generation"]:
        # Its controller would recreate the pod from the old template.
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
    """Return the revision that a pod was made from."""
    annotations = pod["metadata"].get("annotations") or {}
    return str(annotations.get(REVISION_ANNOTATION, ""))
