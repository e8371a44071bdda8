"""The operator's own image, which brokers of new Clusters run by default.

It is read from the operator's pod. So a registry, tag or digest that is set in the operator's
Deployment (kustomize's `images:`) also applies to the brokers.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import structlog

from headrace_operator.kubernetes.api.client import KubernetesError

if TYPE_CHECKING:
    from headrace_operator.kubernetes.api.client import KubernetesClient

__all__ = ["CONTAINER", "POD_NAME", "find_own_image"]

#: The environment variable with the pod's name, and the name of its container.
POD_NAME = "POD_NAME"
CONTAINER = "operator"

_log = structlog.get_logger("headrace.operator")


async def find_own_image(client: KubernetesClient, namespace: str) -> str | None:
    """Return the image of this pod's container; None outside of a pod, or if it is unreadable.

    Raises KubernetesError if a later attempt may succeed.
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
