import gc
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headrace_operator.plan import ObservedGroup, ObservedTopic, plan
from headrace_operator.plan.report import ORPHANS_MAX, TOPICS_MAX, changed, is_lag_only, report
from headrace_operator.resources import Reason
from support.operator_resources import cluster, desired, existing, group, observed, topic

NOW = "2026-01-01T00:00:00Z"


def cpu_seconds(work: Callable[[], object]) -> float:
    """Measure without the collector: it looks at all that other tests of the process have left."""
    gc.collect()
    gc.disable()
    try:
        began = time.process_time()
        work()
        return time.process_time() - began
    finally:
        gc.enable()


def statuses(seen: Any, wanted: Any) -> Any:
    return report(seen, wanted, plan(seen, wanted), now=NOW)


def lagging(topics: int) -> ObservedGroup:
    keys = [(f"t{number:03}", 0) for number in range(topics)]
    return ObservedGroup(
        state="Stable",
        offsets=dict.fromkeys(keys, 0),
        end_offsets={key: number for number, key in enumerate(keys, 1)},
    )


def test_orphans_are_counted_and_the_first_of_them_named():
    names = [f"o{number:03}" for number in range(ORPHANS_MAX + 5)]
    seen = observed(topics={name: existing() for name in ("t", *names)})
    found = statuses(seen, desired(topic()))[cluster().key]["orphanTopics"]
    assert found == {"count": len(names), "names": names[:ORPHANS_MAX]}
    # Who looked at some Topics only cannot tell.
    some = replace(desired(topic()), is_complete=False)
    assert "orphanTopics" not in statuses(seen, some)[cluster().key]


def test_a_cluster_that_is_as_described_has_no_orphans():
    seen = observed(topics={"t": existing()})
    assert "orphanTopics" not in statuses(seen, desired(topic()))[cluster().key]


def test_a_group_reports_the_topics_that_are_furthest_behind():
    seen = observed(groups={"g": lagging(TOPICS_MAX + 10)})
    found = statuses(seen, desired(groups=(group(),)))[group().key]
    assert [each["lagRecords"] for each in found["topics"]] == list(range(11, TOPICS_MAX + 11))
    assert found["lagRecords"] == sum(range(1, TOPICS_MAX + 11))


def test_what_a_reset_needs_to_remember_stays_in_the_status():
    note = {"pausedReplicas": 3, "lastReset": {"requestId": "r", "state": "Started"}}
    known = group(status=note)
    found = statuses(observed(groups={"g": lagging(1)}), desired(groups=(known,)))[known.key]
    assert found["pausedReplicas"] == 3
    assert found["lastReset"]["state"] == "Started"


def test_a_number_of_lag_that_moves_is_no_transition():
    before = {"lagRecords": 5, "lagSeconds": 1, "members": 2, "conditions": []}
    assert is_lag_only(before, {**before, "lagRecords": 6})
    assert not is_lag_only(before, {**before, "members": 3})
    assert changed(before, {**before, "lagRecords": 6})
    assert not changed(before, dict(before))


def test_the_generation_is_observed_when_it_was_worked_off_or_is_stalled():
    def observe(partitions: int) -> Any:
        wanted = topic(partitions=2, metadata={"generation": 7}, status={"observedGeneration": 6})
        seen = observed(topics={"t": ObservedTopic(partitions=partitions, replicas=1)})
        return statuses(seen, desired(wanted))[wanted.key]

    assert observe(2)["observedGeneration"] == 7
    assert observe(1)["observedGeneration"] == 6
    stalled = observe(3)
    assert stalled["observedGeneration"] == 7
    assert {each["type"]: each["reason"] for each in stalled["conditions"]}["Stalled"] == (
        Reason.PARTITIONS_CANNOT_SHRINK
    )


def test_a_condition_keeps_the_time_of_its_last_transition():
    wanted = topic(
        metadata={"generation": 1},
        status={
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "Reconciled",
                    "lastTransitionTime": "2020-01-01T00:00:00Z",
                }
            ]
        },
    )
    found = statuses(observed(topics={"t": existing()}), desired(wanted))[wanted.key]
    times = {each["type"]: each["lastTransitionTime"] for each in found["conditions"]}
    assert times == {"Ready": "2020-01-01T00:00:00Z", "Reconciling": NOW, "Stalled": NOW}


def test_planning_and_reporting_cost_no_more_for_each_topic_where_there_are_many():
    def seconds(count: int) -> float:
        """CPU for so many new topics, and a tenth as many groups."""
        groups = tuple(group(f"g{number}", topics=["t0"]) for number in range(count // 10))
        wanted = desired(*(topic(f"t{number}") for number in range(count)), groups=groups)
        return cpu_seconds(lambda: statuses(observed(), wanted))

    few, many = min(seconds(400) for _ in range(3)), min(seconds(4000) for _ in range(3))
    # Ten times as many: what looks at all for each of them takes a hundred times as long.
    assert many < 40 * few


def test_a_group_that_never_committed_reports_no_lag():
    wanted = desired(groups=(group(),))
    found = statuses(observed(groups={"g": ObservedGroup(state="Stable")}), wanted)
    assert "lagRecords" not in found[group().key]


def test_deleting_many_costs_no_more_for_each():
    def seconds(count: int) -> float:
        going = tuple(topic(f"t{number}", deletionPolicy="Delete") for number in range(count))
        wanted = desired(*going, deleted=frozenset(each.key for each in going))
        seen = observed(topics={f"t{number}": existing() for number in range(count)})
        found: list[int] = []
        taken = cpu_seconds(lambda: found.append(len(plan(seen, wanted).actions)))
        assert found == [count]
        return taken

    few, many = min(seconds(300) for _ in range(3)), min(seconds(3000) for _ in range(3))
    assert many < 40 * few
