"""What is known of groups over time: how fast they read, and their targets' replicas.

Owns one Cluster's trends, in memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace_operator.plan.trends import advance

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from headrace_operator.kubernetes.workloads import Workloads
    from headrace_operator.plan import Key, Observed, ScaleTarget, Trend
    from headrace_operator.plan.trends import Sample
    from headrace_operator.resources import ConsumerGroup

__all__ = ["LOOK_SECONDS", "GroupWatch"]

#: How often a group is observed if its readers are scaled by lag.
LOOK_SECONDS = 5.0


class GroupWatch:
    """Trends of groups with a lag policy."""

    def __init__(self, workloads: Workloads) -> None:
        """No group has been observed yet."""
        self._workloads = workloads
        self._known: dict[Key, tuple[Trend, Sample]] = {}

    async def observe(
        self,
        observed: Observed,
        groups: Iterable[ConsumerGroup],
        fresh: Container[Key] | None = None,
        *,
        now_ms: int,
    ) -> Observed:
        """Add the targets and trends of `groups`.

        `fresh`: those whose offsets were just read; None: all. If the others' old offsets counted
        as an observation, it would show that nothing was read since.
        """
        asked = list(groups)
        targets = await self._workloads.observe(asked)
        for group in asked:
            if fresh is not None and group.key not in fresh:
                continue
            policy, existing = group.spec.lag_policy, observed.groups.get(group.group_id)
            target = targets.get(group.key)
            is_former = group.present_target != group.spec.target_ref
            if policy is None or existing is None or target is None or target.error or is_former:
                self._known.pop(group.key, None)
                continue
            known = self._known.get(group.key)
            self._known[group.key] = advance(policy, known, existing, target, now_ms=now_ms)
        trends = {key: trend for key, (trend, _) in self._known.items()}
        return replace(observed, targets=targets, trends=trends)

    def note_scaled(self, actions: Iterable[ScaleTarget], *, now_ms: int) -> None:
        """Record when replicas changed: the next measurement shows the rebalance."""
        for action in actions:
            if (known := self._known.get(action.resource)) is not None:
                self._known[action.resource] = (replace(known[0], scaled_at_ms=now_ms), known[1])

    def forget(self, key: Key) -> None:
        """Remove a deleted group."""
        self._known.pop(key, None)
