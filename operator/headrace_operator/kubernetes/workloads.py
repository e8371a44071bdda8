"""Observes and scales the `targetRef` of ConsumerGroups through /scale.

The replicas of a SparkApplication are its executors if its runner can change their number without
restarting the driver; otherwise it counts as one replica. Zero replicas means suspended.

The operator may patch every /scale in its namespaces. The right to write ConsumerGroups must not
imply that one: a target names, in an annotation, the groups that may scale it, and objects that
belong to a Cluster are never targets (docs/decisions/0015).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headrace_operator.apply import Failure
from headrace_operator.kubernetes.api.client import KubernetesError
from headrace_operator.plan import ObservedTarget, pending_reset
from headrace_operator.render.names import MANAGED_BY
from headrace_operator.render.spark_submission import is_resizable, wanted_executors
from headrace_operator.resources import SPARK_API_VERSION
from headrace_operator.resources.common import GROUP

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headrace_operator.kubernetes.api.client import KubernetesClient
    from headrace_operator.plan import Key, ScaleTarget
    from headrace_operator.resources import ConsumerGroup
    from headrace_operator.resources.consumer_group import TargetReference

__all__ = [
    "SCALED_BY_ANNOTATION",
    "Workloads",
    "needs_target",
    "observed_application",
    "refusal_of",
]

#: On a target: the names of ConsumerGroups in its namespace that may scale it, with commas.
SCALED_BY_ANNOTATION = "headrace.dev/scaled-by"

_APPLICATION = "SparkApplication"
#: Its driver exists, or may be restarted.
_STOPPED = frozenset({"", "COMPLETED", "FAILED", "SUBMISSION_FAILED", "SUSPENDED"})


def needs_target(group: ConsumerGroup) -> bool:
    """Whether the group's handling depends on its number of readers."""
    if group.present_target is None:
        return False
    if group.is_paused:
        return True
    if group.metadata.deletion_timestamp:
        return False
    return group.spec.lag_policy is not None or pending_reset(group) is not None


class Workloads:
    """Anything that has /scale."""

    def __init__(self, client: KubernetesClient) -> None:
        """Nothing is cached: another client may have changed the replicas a moment ago."""
        self._client = client

    async def observe(self, groups: Iterable[ConsumerGroup]) -> dict[Key, ObservedTarget]:
        """Observe the targets of groups that depend on them."""
        asked = [group for group in groups if needs_target(group)]
        found = await asyncio.gather(*(self._observe(group) for group in asked))
        return {group.key: target for group, target in zip(asked, found, strict=True)}

    async def _observe(self, group: ConsumerGroup) -> ObservedTarget:
        reference = group.present_target
        if reference is None:
            return ObservedTarget(replicas=0, error="there is no targetRef")
        try:
            return await self._observe_target(group, reference)
        except KubernetesError as error:
            if not error.is_about_object:
                raise
            return ObservedTarget(replicas=0, error=error.message, is_unknown=not error.is_refusal)

    async def _observe_target(
        self, group: ConsumerGroup, reference: TargetReference
    ) -> ObservedTarget:
        where = (_api_version(reference), reference.kind, group.metadata.namespace, reference.name)
        found = await self._client.get(*where)
        if found is None:
            return ObservedTarget(replicas=0, error="there is none", is_missing=True)
        if refusal := refusal_of(group.metadata.name, found):
            return ObservedTarget(replicas=0, error=refusal, is_refused=True)
        if reference.kind == _APPLICATION:
            return observed_application(found)
        scale = await self._client.get_scale(*where)
        if scale is None:
            return ObservedTarget(replicas=0, error="it has no /scale")
        return ObservedTarget(
            replicas=scale.get("spec", {}).get("replicas", 0),
            running=scale.get("status", {}).get("replicas", 0),
        )

    async def scale(self, actions: Sequence[ScaleTarget]) -> tuple[Failure, ...]:
        """Scale; a refused or missing target is a failure of that action."""
        results = await asyncio.gather(*(self._scale(action) for action in actions))
        return tuple(failure for failure in results if failure is not None)

    async def _scale(self, action: ScaleTarget) -> Failure | None:
        if action.replicas == action.previous:
            return None
        reference = _reference(action.target, action.resource[1])
        is_application = action.target.kind == _APPLICATION
        try:
            if is_application and 0 in (action.replicas, action.previous):
                # It resumes with the number of executors in its spec.
                patch = {"spec": {"suspend": action.replicas == 0}}
                done = await self._client.patch(reference, patch)
            else:
                done = await self._client.set_scale(reference, action.replicas)
        except KubernetesError as error:
            return Failure(action=action, message=str(error), is_retriable=not error.is_refusal)
        if done is None:
            return Failure(action=action, message="it is gone", is_retriable=True)
        return None


def refusal_of(group: str, found: Mapping[str, Any]) -> str:
    """Return why a ConsumerGroup may not scale an object; '' if it may. Pure."""
    metadata = found["metadata"]
    for owner in metadata.get("ownerReferences") or []:
        if owner["apiVersion"].partition("/")[0] == GROUP:
            return f"it belongs to {owner['kind']} {owner['name']}, and no group scales that"
    if MANAGED_BY.items() <= (metadata.get("labels") or {}).items():
        return "it is the operator's own, and no group scales that"
    allowed = (metadata.get("annotations") or {}).get(SCALED_BY_ANNOTATION, "")
    if group in (name.strip() for name in allowed.split(",")):
        return ""
    return f"it does not allow that; annotate it with {SCALED_BY_ANNOTATION}: {group}"


def observed_application(found: Mapping[str, Any] | None) -> ObservedTarget:
    """Return a SparkApplication as a target; None: there is none. Pure."""
    if found is None:
        return ObservedTarget(replicas=0, error="there is none")
    status = found.get("status") or {}
    is_stopped = status.get("applicationState", {}).get("state", "") in _STOPPED
    fixed = ""
    if not is_resizable(found):
        fixed = "only Headrace's own jobs without dynamicAllocation change executors as they run"
    elif status and "executors" not in status:
        # A foreign CRD drops the field, and has no /scale.
        fixed = "whoever runs it starts its driver again for another number of executors"
    replicas = 1 if fixed else wanted_executors(found)
    running = max(1, int(status.get("executors") or 0))
    return ObservedTarget(
        replicas=0 if found["spec"].get("suspend") else replicas,
        running=0 if is_stopped else running,
        fixed=fixed,
    )


def _reference(target: TargetReference, namespace: str) -> dict[str, Any]:
    api_version = _api_version(target)
    metadata = {"namespace": namespace, "name": target.name}
    return {"apiVersion": api_version, "kind": target.kind, "metadata": metadata}


def _api_version(target: TargetReference) -> str:
    return SPARK_API_VERSION if target.kind == _APPLICATION else target.api_version
