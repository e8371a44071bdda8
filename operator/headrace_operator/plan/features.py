"""Plans the feature levels in the spec: the second step of an upgrade. Pure.

An image can be rolled back, a feature level mostly cannot. So levels change only if the spec names
them, and only when every broker runs the spec's image and supports them. Features that the spec
does not name stay as they are. The brokers refuse a change that would lose metadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_operator.plan.actions import SetFeatureLevels
from headrace_operator.plan.model import Problem, Waiting
from headrace_operator.resources import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace_operator.plan.model import ObservedCluster
    from headrace_operator.resources import Cluster

__all__ = ["differing_features", "plan_features"]


def plan_features(
    cluster: Cluster, seen: ObservedCluster, *, is_settled: bool
) -> Iterator[SetFeatureLevels | Problem | Waiting]:
    """Plan the levels that differ. `is_settled`: brokers have nothing else to do or wait for."""
    if seen.features is None or not seen.is_reachable:
        return
    levels = differing_features(cluster, seen.features)
    if not levels:
        return
    if not is_settled or not all(each.is_registered for each in seen.brokers):
        message = f"spec.features: {_listed(levels)}: when all brokers run what the spec says"
        yield Waiting(resource=cluster.key, reason=Reason.WAITING_FOR_BROKERS, message=message)
        return
    unsupported = list(_unsupported(seen, levels))
    if unsupported:
        message = f"spec.features: {'; '.join(unsupported)}"
        yield Problem(resource=cluster.key, reason=Reason.NOT_SUPPORTED, message=message)
        return
    yield SetFeatureLevels(resource=cluster.key, levels=levels)


def differing_features(cluster: Cluster, features: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the levels that differ from the spec: present and wanted, by name."""
    return {
        name: (features.get(name, 0), level)
        for name, level in sorted(cluster.spec.features.items())
        if features.get(name, 0) != level
    }


def _unsupported(seen: ObservedCluster, levels: dict[str, tuple[int, int]]) -> Iterator[str]:
    for name, (_, wanted) in levels.items():
        for node_id, ranges in sorted(seen.supported_features.items()):
            lowest, highest = ranges.get(name, (0, 0))
            if not lowest <= wanted <= highest:
                can = f"{lowest} to {highest}" if name in ranges else "no level of it"
                yield f"{name} {wanted}: broker {node_id} supports {can}"
                break


def _listed(levels: dict[str, tuple[int, int]]) -> str:
    return ", ".join(f"{name} {before} -> {after}" for name, (before, after) in levels.items())
