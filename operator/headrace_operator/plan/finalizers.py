"""Which resources need the finalizer: those whose deletion has work to do in the brokers. Pure.

The default policy, Retain, has none: such resources, and their namespaces, go at once, whether an
operator runs or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_operator.plan.actions import DeleteGroup, DeleteTopic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_operator.plan.model import Desired, Key, Plan
    from headrace_operator.resources import ConsumerGroup, Topic

__all__ = ["FINALIZER", "finalizer_changes"]

FINALIZER = "headrace.dev/brokers"


def finalizer_changes(desired: Desired, plan: Plan) -> Mapping[Key, bool]:
    """Return who gets the finalizer (True) and who loses it (False)."""
    resources: tuple[Topic | ConsumerGroup, ...] = (*desired.topics, *desired.groups)
    busy = {problem.resource for problem in plan.problems}
    busy |= {wait.resource for wait in plan.waiting}
    busy |= {each.resource for each in plan.actions if isinstance(each, DeleteTopic | DeleteGroup)}
    changes: dict[Key, bool] = {}
    for resource in resources:
        has = FINALIZER in resource.metadata.finalizers
        if resource.key in desired.deleted:
            wants = has and resource.key in busy
        else:
            wants = resource.spec.deletion_policy != "Retain"
        if wants != has:
            changes[resource.key] = wants
    return changes
