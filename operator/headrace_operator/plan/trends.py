"""How fast a group reads and how fast records arrive, from several observations. Pure.

A `Sample` is one observation, a `Trend` the result of all of them. The observer keeps both in
memory: a restart costs a few observations, and one `scaleDownDelay` before any scale-down.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace_operator.plan.model import Trend
from headrace_operator.plan.scaling import SETTLING_MS, recommend
from headrace_operator.resources.durations import parse_duration_ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_operator.plan.model import ObservedGroup, ObservedTarget, TopicPartition
    from headrace_operator.resources import LagPolicy

__all__ = ["Sample", "advance", "remember"]

#: Observations closer together than this measure noise.
INTERVAL_MS_MIN = 1_000
#: The weight of the newest observation.
WEIGHT = 0.5
#: The limit of stored recommendations, however long the delay is.
RECOMMENDATIONS_MAX = 64


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The positions of a group and its partitions."""

    at_ms: int
    offsets: Mapping[TopicPartition, int]
    end_offsets: Mapping[TopicPartition, int]


def advance(
    policy: LagPolicy,
    known: tuple[Trend, Sample] | None,
    group: ObservedGroup,
    target: ObservedTarget,
    *,
    now_ms: int,
) -> tuple[Trend, Sample]:
    """Return the trend after another observation."""
    sample = Sample(at_ms=now_ms, offsets=group.progress, end_offsets=group.end_offsets)
    if known is None:
        trend = Trend(now_ms=now_ms, lag_records=group.lag_records)
    else:
        trend, before = known
        if now_ms - before.at_ms < INTERVAL_MS_MIN:
            return known
        trend = _measured(trend, before, group, target, now_ms)
    asked = (now_ms, recommend(policy, group, trend, target.replicas))
    delay_ms = parse_duration_ms(policy.scale_down_delay)
    recommendations = remember(trend.recommendations, asked, delay_ms)
    return replace(trend, recommendations=recommendations), sample


def _measured(
    trend: Trend, before: Sample, group: ObservedGroup, target: ObservedTarget, now_ms: int
) -> Trend:
    seconds = (now_ms - before.at_ms) / 1000
    consumed = _gained(before.offsets, group.progress) / seconds
    produced = _gained(before.end_offsets, group.end_offsets) / seconds
    capacity = trend.capacity_per_second
    readers = target.running
    if not group.is_share:
        readers = min(readers, len(group.end_offsets))
    is_settled = before.at_ms - trend.scaled_at_ms >= SETTLING_MS
    if readers and consumed and is_settled and _was_behind(before) and group.lag_records:
        # Readers that were always busy show their maximum rate. Slower code shows after some time,
        # too.
        each = consumed / readers
        capacity = max(each, _blend(capacity, each)) if capacity else each
    return replace(
        trend,
        now_ms=now_ms,
        lag_records=group.lag_records,
        consumed_per_second=_blend(trend.consumed_per_second, consumed),
        produced_per_second=_blend(trend.produced_per_second, produced),
        capacity_per_second=capacity,
    )


def _was_behind(before: Sample) -> bool:
    return any(before.end_offsets.get(key, at) > at for key, at in before.offsets.items())


def _gained(before: Mapping[TopicPartition, int], after: Mapping[TopicPartition, int]) -> int:
    """Count the increase in partitions of both observations; a reset backwards is no reading."""
    return sum(max(0, after[key] - at) for key, at in before.items() if key in after)


def _blend(known: float, newest: float) -> float:
    return known + WEIGHT * (newest - known)


def remember(
    recommendations: tuple[tuple[int, int], ...], newest: tuple[int, int], delay_ms: int
) -> tuple[tuple[int, int], ...]:
    """Add a recommendation; drop those older than the delay, except the last one before it.

    That one shows that observations go back far enough. Recommendations close together are merged
    into their maximum, so that a long delay takes no more memory than a short one.
    """
    since = newest[0] - delay_ms
    kept = list(recommendations)
    while len(kept) > 1 and kept[1][0] <= since:
        del kept[0]
    if len(kept) > 1 and kept[-1][0] - kept[-2][0] < delay_ms / RECOMMENDATIONS_MAX:
        kept[-2:] = [(kept[-2][0], max(kept[-2][1], kept[-1][1]))]
    return (*kept, newest)
