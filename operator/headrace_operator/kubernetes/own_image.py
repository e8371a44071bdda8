"""The operator's own image: brokers of new Clusters run the same.

Its pod says it. So whatever puts another registry, tag or digest into the operator's Deployment
(kustomize's `images:`) puts it into the brokers, too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import structlog

from headrace_operator.kubernetes.api.client import KubernetesError

if TYPE_CHECKING:
    from headrace_operator.kubernetes.api.client import KubernetesClient

__all__ = ["CONTAINER", "POD_NAME", "find_own_image"]

#: The environment variable that names the pod, and the name of its container.
POD_NAME = "POD_NAME"
CONTAINER = "operator"

_log = structlog.get_logger("headrace.operator")


async def find_own_image(client: KubernetesClient, namespace: str) -> str | None:
    """Return the image of this pod's container; None outside of a pod, or where it cannot be read.

    Raises KubernetesError where it may only be asked too early.
    """
    name = os.environ.get(POD_NAME)
    if not name:
        return None
    try:
        pod = await client.get("v1", "Pod", namespace, name)
    except KubernetesError as error:
        if not error.is_refusal:
            raise
        _log.warning("the operator's own image cannot be read", pod=name, error=str(error))
        return None
    containers = (pod or {}).get("spec", {}).get("containers") or []
    return next((each["image"] for each in containers if each["name"] == CONTAINER), None)
