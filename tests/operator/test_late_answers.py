"""What comes late, or too often, changes nothing that is known better."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from headrace_operator.apply import apply_actions
from headrace_operator.kubernetes.api.cache import Store
from headrace_operator.kubernetes.api.client import FencedError
from headrace_operator.kubernetes.group_watch import GroupWatch
from headrace_operator.plan import (
    CreateTopic,
    DeleteTopic,
    Key,
    ObservedGroup,
    ObservedTarget,
)
from support.operator_resources import group, observed

SECOND_MS = 1000


def config_map(version: int, text: str) -> dict[str, Any]:
    metadata = {"namespace": "n", "name": "c", "resourceVersion": str(version)}
    return {"kind": "ConfigMap", "metadata": metadata, "data": {"text": text}}


def test_the_answer_to_a_write_does_not_undo_what_a_watch_has_delivered_since() -> None:
    store = Store()
    store.upsert(config_map(12, "by somebody else"))
    store.learn(config_map(9, "ours"))
    assert store.get("ConfigMap", "n", "c") == config_map(12, "by somebody else")
    store.learn(config_map(13, "ours again"))
    assert store.get("ConfigMap", "n", "c") == config_map(13, "ours again")


def test_an_operator_that_lost_its_lease_sends_nothing_more() -> None:
    def fence() -> None:
        raise FencedError

    topic = ("Topic", "n", "t")
    actions = [
        CreateTopic(resource=topic, topic="t", partitions=1, replicas=1, config={}),
        DeleteTopic(resource=topic, topic="u"),
    ]
    # There is no client that could send anything.
    with pytest.raises(FencedError):
        apply_actions(None, actions, fence)


class Targets:
    """Says that every target has one reader: looking at real ones needs an API server."""

    async def observe(self, groups: Iterable[Any]) -> dict[Key, ObservedTarget]:
        return {each.key: ObservedTarget(replicas=1, running=1) for each in groups}


def test_offsets_that_were_not_asked_for_again_say_nothing_of_how_fast_a_group_reads() -> None:
    lag = {"target": {"drainTime": "60s"}, "maxReplicas": 4}
    wanted = group(targetRef={"kind": "Deployment", "name": "readers"}, lagPolicy=lag)
    watch = GroupWatch(Targets())  # type: ignore[arg-type]  # it has what is asked of it

    def look(offset: int, at_seconds: int, *, is_fresh: bool = True) -> float:
        found = ObservedGroup(
            state="Stable", offsets={("t", 0): offset}, end_offsets={("t", 0): 10_000}
        )
        seen = observed(groups={"g": found})
        fresh = {wanted.key} if is_fresh else set[Key]()
        merged = asyncio.run(watch.observe(seen, [wanted], fresh, now_ms=at_seconds * SECOND_MS))
        return merged.trends[wanted.key].consumed_per_second

    look(0, 0)
    known = look(1000, 10)
    assert known > 0
    # A roll: pods change all the time, and each pass has the offsets of the look before.
    for second in range(12, 20, 2):
        assert look(1000, second, is_fresh=False) == known
    assert look(2000, 20) >= known
