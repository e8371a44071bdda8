"""How many consumers a group should have, from its lag and their measured rate. Pure.

`recommend` uses one observation; `stabilised` smooths them: scale-up is immediate, scale-down
happens only if fewer replicas were enough for the whole `scaleDownDelay` (as in the HPA). A
partition has one reader, so there are never more consumers than partitions, nor more than
partitions with lag: standbys do not speed up a hot partition (keda #3997, #4483). Members of a
share group share partitions, so there partitions are no limit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from headrace_operator.plan.actions import ScaleTarget
from headrace_operator.plan.model import ObservedGroup, Problem, Trend, Waiting
from headrace_operator.resources import Reason
from headrace_operator.resources.durations import parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_operator.plan.model import Action, Observed
    from headrace_operator.resources import ConsumerGroup, LagPolicy

__all__ = [
    "drain_seconds",
    "is_within_target",
    "plan_scaling",
    "recommend",
    "stabilised",
    "target_problem",
]

#: A step at most doubles the running replicas.
GROWTH_MAX = 2
#: After a change, measurements mostly show the rebalance.
SETTLING_MS = 15_000
#: Fewer replicas are tried when the lag is below this share of the allowed lag.
COMFORT = 0.5


def plan_scaling(group: ConsumerGroup, observed: Observed) -> Iterator[Action | Problem | Waiting]:
    """Plan the replicas of a group's target according to its lag policy."""
    policy, reference = group.spec.lag_policy, group.spec.target_ref
    if policy is None or reference is None:
        return
    target, trend = observed.targets.get(group.key), observed.trends.get(group.key)
    if problem := target_problem(group, observed):
        yield problem
    if target is not None and target.fixed:
        message = f"{reference.kind} {reference.name}: {target.fixed}"
        yield Problem(resource=group.key, reason=Reason.NOT_SUPPORTED, message=message)
    if target is None or target.error or target.fixed or trend is None:
        return
    wanted = stabilised(policy, trend, target.replicas)
    if wanted != target.replicas:
        yield ScaleTarget(
            resource=group.key,
            target=reference,
            replicas=wanted,
            previous=target.replicas,
            reason=f"lag {trend.lag_records}",
        )


def target_problem(group: ConsumerGroup, observed: Observed) -> Problem | Waiting | None:
    """Return why a group's target can be neither scaled nor stopped; None if it can."""
    target, reference = observed.targets.get(group.key), group.present_target
    if target is None or reference is None or not target.error:
        return None
    message = f"{reference.kind} {reference.name}: {target.error}"
    if target.is_unknown:
        return Waiting(resource=group.key, reason=Reason.RECONCILING, message=message)
    reason = Reason.TARGET_NOT_ALLOWED if target.is_refused else Reason.TARGET_NOT_FOUND
    return Problem(resource=group.key, reason=reason, message=message)


def recommend(policy: LagPolicy, existing: ObservedGroup, trend: Trend, replicas: int) -> int:
    """Return how many consumers this observation asks for."""
    lag = existing.lag_records
    if not existing.offsets:
        # The group never committed: start one reader if there is anything to read.
        wanted = replicas or int(any(existing.end_offsets.values()))
    elif replicas == 0:
        wanted = 1 if lag else 0
    elif policy.target.drain_time is not None:
        wanted = _by_drain_time(policy.target.drain_time, lag, trend, replicas)
    elif policy.target.max_lag_seconds is not None:
        wanted = _by_share(existing.lag_seconds, policy.target.max_lag_seconds, replicas)
    else:
        wanted = _by_share(lag, policy.target.max_lag_records or 1, replicas)
    wanted = min(wanted, GROWTH_MAX * max(1, replicas))
    if existing.is_share:
        return max(min(wanted, policy.max_replicas), policy.min_replicas)
    if wanted > replicas and existing.offsets:
        behind = sum(1 for records in existing.lag.values() if records)
        wanted = min(wanted, max(replicas, behind))
    partitions = len(existing.end_offsets) or 1
    return max(min(wanted, partitions, policy.max_replicas), policy.min_replicas)


def _by_drain_time(drain_time: str, lag: int, trend: Trend, replicas: int) -> int:
    seconds = max(1.0, parse_duration_ms(drain_time) / 1000)
    if not trend.capacity_per_second:
        # No reader was ever saturated, so its maximum rate is unknown; one reader fewer will show
        # it.
        return replicas if lag else replicas - 1
    needed = trend.produced_per_second + lag / seconds
    return math.ceil(needed / trend.capacity_per_second - 1e-9)


def _by_share(lag: int | None, allowed: int, replicas: int) -> int:
    if lag is None:
        return replicas
    if lag > allowed:
        return math.ceil(replicas * lag / allowed)
    return replicas - 1 if lag < allowed * COMFORT else replicas


def stabilised(policy: LagPolicy, trend: Trend, replicas: int) -> int:
    """Return the replicas to scale to now; `trend.recommendations` ends with the newest."""
    if not trend.recommendations:
        return replicas
    newest = trend.recommendations[-1][1]
    if newest > replicas:
        is_settled = trend.now_ms - trend.scaled_at_ms >= SETTLING_MS
        return newest if is_settled else replicas
    delay_ms = parse_duration_ms(policy.scale_down_delay)
    since = trend.now_ms - delay_ms
    if trend.recommendations[0][0] > since or trend.scaled_at_ms > since:
        return replicas
    return min(replicas, max(count for at, count in trend.recommendations if at >= since))


def drain_seconds(existing: ObservedGroup, trend: Trend | None) -> float | None:
    """Return how many seconds the lag takes at the measured rates; None: not known."""
    if not existing.lag_records:
        return 0.0
    if trend is None or not trend.consumed_per_second:
        return None
    return existing.lag_records / trend.consumed_per_second


def is_within_target(
    policy: LagPolicy, existing: ObservedGroup | None, trend: Trend | None
) -> bool | None:
    """Whether the lag is within its limit; None: not known.

    The lag of a group that never committed is not known: it depends on the readers' reset policy.
    """
    if existing is None or not existing.offsets:
        return None
    target = policy.target
    if target.max_lag_records is not None:
        return existing.lag_records <= target.max_lag_records
    if target.max_lag_seconds is not None:
        return (
            None
            if existing.lag_seconds is None
            else (existing.lag_seconds <= target.max_lag_seconds)
        )
    seconds = drain_seconds(existing, trend)
    if seconds is None or target.drain_time is None:
        return None
    return seconds * 1000 <= parse_duration_ms(target.drain_time)
