from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from headrace_operator.kubernetes.workloads import (
    SCALED_BY_ANNOTATION,
    observed_application,
    refusal_of,
)
from headrace_operator.plan import (
    Observed,
    ObservedCluster,
    ObservedGroup,
    ObservedTarget,
    ObservedTopic,
    ResetOffsets,
    ScaleTarget,
    Trend,
    plan,
)
from headrace_operator.plan.scaling import SETTLING_MS, is_within_target, recommend, stabilised
from headrace_operator.plan.status import status
from headrace_operator.plan.trends import RECOMMENDATIONS_MAX, advance, remember
from headrace_operator.render.names import MANAGED_BY
from headrace_operator.resources import API_VERSION, LagPolicy, Reason
from headrace_operator.resources.consumer_group import LagTarget
from support.operator_resources import cluster, desired, group, make, observed

TARGET = {"kind": "Deployment", "name": "readers"}


def policy(minimum: int = 1, maximum: int = 10, delay: str = "5m", **target: Any) -> LagPolicy:
    return LagPolicy(
        target=LagTarget(**target),
        min_replicas=minimum,
        max_replicas=maximum,
        scale_down_delay=delay,
    )


def seen(*lags: int, committed: int = 1000, seconds: int | None = None) -> ObservedGroup:
    """Return a group that stands at the same offset everywhere, so far behind."""
    keys = [("t", index) for index in range(len(lags))]
    return ObservedGroup(
        state="Stable",
        offsets=dict.fromkeys(keys, committed),
        end_offsets={key: committed + lag for key, lag in zip(keys, lags, strict=True)},
        lag_seconds=seconds,
    )


def rates(capacity: float = 100, produced: float = 0, **more: Any) -> Trend:
    return Trend(
        now_ms=10_000_000,
        capacity_per_second=capacity,
        produced_per_second=produced,
        consumed_per_second=capacity,
        **more,
    )


def test_a_drain_time_asks_for_as_many_readers_as_work_the_lag_off_in_it():
    drain = policy(drain_time="10s")
    # 3,000 records and 50 a second more: 350 a second, at 100 for each reader.
    assert recommend(drain, seen(1000, 1000, 1000, 0), rates(100, 50), 2) == 3
    assert recommend(drain, seen(*[1000] * 8), rates(100, 50), 8) == 8
    assert recommend(drain, seen(0, 0, 0), rates(100, 50), 3) == 1


def test_members_of_a_share_group_may_be_more_than_its_partitions():
    crowd = policy(maximum=8, max_lag_records=100)
    for kind, expected in (("consumer", 1), ("share", 2)):
        assert recommend(crowd, replace(seen(400), type=kind), rates(), 1) == expected
    assert recommend(crowd, replace(seen(4000), type="share"), rates(), 4) == 8


def test_what_a_share_group_is_done_with_out_of_order_counts_as_read():
    drain = policy(drain_time="10s")
    target = ObservedTarget(replicas=3, running=3)
    # Its start stays where one record is slow; others beyond it are acknowledged.
    looks = [
        replace(seen(5000), type="share", told_lag={("t", 0): 5000 - 600 * number})
        for number in range(3)
    ]
    known = None
    for number, look in enumerate(looks):
        known = advance(drain, known, look, target, now_ms=1_000_000 + 10_000 * number)
    assert known[0].capacity_per_second == pytest.approx(20)


def test_no_step_more_than_doubles():
    assert recommend(policy(drain_time="1s"), seen(*[9000] * 10), rates(), 2) == 4


@pytest.mark.parametrize("target", [{"max_lag_records": 100}, {"max_lag_seconds": 10}])
def test_a_share_of_what_is_allowed_scales_the_readers_by_it(target):
    assert recommend(policy(**target), seen(100, 100, 0, seconds=20), rates(), 2) == 2
    assert recommend(policy(**target), seen(100, 50, 50, seconds=20), rates(), 2) == 3
    assert recommend(policy(**target), seen(10, 0, 0, seconds=1), rates(), 3) == 2


def test_there_are_never_more_readers_than_partitions_nor_than_the_policy_allows():
    huge = seen(*[100_000] * 3)
    assert recommend(policy(max_lag_records=1), huge, rates(), 3) == 3
    assert recommend(policy(maximum=2, max_lag_records=1), huge, rates(), 2) == 2


def test_one_hot_partition_brings_no_standbys():
    assert recommend(policy(max_lag_records=10), seen(100_000, 0, 0, 0), rates(), 1) == 1


def test_minimum_holds_and_nobody_reads_at_zero_until_there_is_something_to_read():
    assert recommend(policy(minimum=2, max_lag_records=10), seen(0, 0, 0), rates(), 2) == 2
    to_zero = policy(minimum=0, max_lag_records=10)
    assert recommend(to_zero, seen(0, 0), rates(), 1) == 0
    assert recommend(to_zero, seen(0, 0), rates(), 0) == 0
    assert recommend(to_zero, seen(0, 5), rates(), 0) == 1


def test_without_a_measured_rate_lag_changes_nothing():
    assert recommend(policy(drain_time="1s"), seen(9000, 9000), rates(capacity=0), 1) == 1


def test_more_come_at_once_but_not_into_a_rebalance():
    asks = ((9_000_000, 2), (10_000_000, 4))
    assert stabilised(policy(max_lag_records=1), rates(recommendations=asks), 2) == 4
    lately = 10_000_000 - SETTLING_MS + 1
    settling = rates(recommendations=asks, scaled_at_ms=lately)
    assert stabilised(policy(max_lag_records=1), settling, 2) == 2


def test_fewer_only_when_fewer_were_enough_for_the_whole_delay():
    slow = policy(delay="1m", max_lag_records=1)
    now = 10_000_000
    long_enough = ((now - 61_000, 3), (now - 30_000, 2), (now, 1))
    assert stabilised(slow, rates(recommendations=long_enough), 4) == 2
    assert stabilised(slow, rates(recommendations=long_enough[1:]), 4) == 4
    scaled = rates(recommendations=long_enough, scaled_at_ms=now - 59_000)
    assert stabilised(slow, scaled, 4) == 4


def test_recommendations_cover_the_delay_in_bounded_room():
    kept: tuple[tuple[int, int], ...] = ()
    delay_ms = 3_600_000
    for tick in range(2000):
        kept = remember(kept, (tick * 5000, 9 if tick == 1500 else 1), delay_ms)
        assert len(kept) <= RECOMMENDATIONS_MAX + 3
    now = 1999 * 5000
    assert kept[0][0] <= now - delay_ms < kept[1][0]
    assert max(count for _, count in kept) == 9
    assert all(earlier < later for (earlier, _), (later, _) in pairwise(kept))


def looks(*steps: tuple[int, int, int], running: int = 2) -> Trend:
    """Look every 5 s; a step is what was committed, the end, and the replicas."""
    known = None
    for number, (committed, end, replicas) in enumerate(steps):
        keys = [("t", 0), ("t", 1)]
        look = ObservedGroup(
            state="Stable",
            offsets=dict.fromkeys(keys, committed),
            end_offsets=dict.fromkeys(keys, end),
        )
        target = ObservedTarget(replicas=replicas, running=running)
        known = advance(
            policy(drain_time="1m"), known, look, target, now_ms=1_000_000 + number * 5000
        )
    assert known is not None
    return known[0]


def test_rates_are_measured_from_look_to_look():
    trend = looks((0, 10_000, 2), (500, 11_000, 2))
    # Two partitions: 1,000 read and 2,000 written in 5 s; half of a first look counts.
    assert trend.consumed_per_second == 100
    assert trend.produced_per_second == 200
    assert trend.capacity_per_second == 100


def test_who_had_caught_up_says_nothing_of_what_it_can():
    assert looks((0, 0, 2), (500, 500, 2)).capacity_per_second == 0


def test_a_reset_backwards_is_no_reading():
    assert looks((5000, 9000, 2), (0, 9000, 2)).consumed_per_second == 0


def asked(**spec: Any) -> Any:
    lag = {"target": {"maxLagRecords": 10}, "maxReplicas": 4}
    return group(targetRef=TARGET, topics=["t"], **{"lagPolicy": lag, **spec})


def with_target(found: ObservedGroup, replicas: int, trend: Trend | None = None) -> Any:
    key = asked().key
    topic = ObservedTopic(partitions=3, replicas=1)
    target = ObservedTarget(replicas=replicas, running=replicas)
    trends = {key: trend} if trend else {}
    base = observed(topics={"t": topic}, groups={"g": found})
    return replace(base, targets={key: target}, trends=trends)


def scalings(planned: Any) -> list[tuple[int, int, bool]]:
    return [
        (each.previous, each.replicas, each.is_pause)
        for each in planned.actions
        if isinstance(each, ScaleTarget)
    ]


def test_lag_scales_the_target():
    trend = rates(recommendations=((10_000_000, 3),))
    planned = plan(with_target(seen(20, 20, 20), 2, trend), desired(groups=(asked(),)))
    assert scalings(planned) == [(2, 3, False)]


def test_a_target_that_is_not_there_is_a_problem_and_not_an_action():
    found = with_target(seen(20, 20, 20), 0)
    target = ObservedTarget(replicas=0, error="there is none")
    planned = plan(replace(found, targets={asked().key: target}), desired(groups=(asked(),)))
    assert [each.reason for each in planned.problems] == [Reason.TARGET_NOT_FOUND]
    assert not scalings(planned)


def test_a_target_that_does_not_allow_it_is_neither_scaled_nor_stopped_nor_started():
    target = ObservedTarget(replicas=0, error="it does not allow that", is_refused=True)
    for wanted in (asked(), asked(reset=RESET), asked(status={"pausedReplicas": 2})):
        found = with_target(replace(seen(20, 20, 20), state="Stable"), 0)
        planned = plan(replace(found, targets={wanted.key: target}), desired(groups=(wanted,)))
        assert Reason.TARGET_NOT_ALLOWED in [each.reason for each in planned.problems]
        assert not scalings(planned)


def test_a_target_that_cannot_be_looked_at_now_is_waited_for():
    found = with_target(seen(20, 20, 20), 0)
    target = ObservedTarget(replicas=0, error="no answer", is_unknown=True)
    planned = plan(replace(found, targets={asked().key: target}), desired(groups=(asked(),)))
    assert not planned.problems
    assert [each.message for each in planned.waiting] == ["Deployment readers: no answer"]


def test_how_far_a_group_is_behind_that_never_committed_is_unknown():
    never = ObservedGroup(state="Stable", end_offsets={("t", 0): 5000})
    assert is_within_target(policy(max_lag_records=10), never, None) is None
    assert is_within_target(policy(max_lag_records=10), seen(20), None) is False


def target_document(**metadata: Any) -> dict[str, Any]:
    return {"kind": "StatefulSet", "metadata": {"name": "main-a", **metadata}}


def test_who_writes_a_group_borrows_no_right_to_scale():
    owner = {"apiVersion": API_VERSION, "kind": "Cluster", "name": "main", "uid": "u"}
    allowing = {SCALED_BY_ANNOTATION: "other, g"}
    assert refusal_of("g", target_document(annotations=allowing)) == ""
    assert "headrace.dev/scaled-by: g2" in refusal_of("g2", target_document(annotations=allowing))
    assert "headrace.dev/scaled-by: g" in refusal_of("g", target_document())
    owned = target_document(annotations=allowing, ownerReferences=[owner])
    assert "belongs to Cluster main" in refusal_of("g", owned)
    ours = target_document(annotations=allowing, labels=MANAGED_BY)
    assert "operator's own" in refusal_of("g", ours)


RESET = {"requestId": "r1", "to": {"position": "Earliest"}, "whenActive": "ScaleDown"}


def test_a_reset_stops_the_readers_moves_the_group_and_starts_as_many_again():
    active = replace(seen(5, 5, 5), start_offsets={("t", index): 0 for index in range(3)})
    wanted = asked(reset=RESET)
    planned = plan(with_target(active, 3), desired(groups=(wanted,)))
    assert scalings(planned) == [(3, 0, True)]
    assert [each.reason for each in planned.waiting] == [Reason.WAITING_FOR_EMPTY_GROUP]

    # Stopped: nothing scales it up before the reset is done, whatever the lag.
    paused = asked(reset=RESET, status={"pausedReplicas": 3})
    empty = replace(active, state="Empty")
    trend = rates(recommendations=((10_000_000, 3),))
    planned = plan(with_target(empty, 0, trend), desired(groups=(paused,)))
    assert [type(each) for each in planned.actions] == [ResetOffsets]

    note = {"pausedReplicas": 3, "lastReset": {"requestId": "r1", "state": "Done"}}
    done = asked(reset=RESET, status=note)
    planned = plan(with_target(empty, 0, trend), desired(groups=(done,)))
    assert scalings(planned) == [(0, 3, False)]


def test_a_group_that_goes_while_its_readers_are_stopped_gives_them_back():
    gone = asked(status={"pausedReplicas": 3}, metadata={"deletionTimestamp": "now"})
    wanted = desired(groups=(gone,), deleted=frozenset({gone.key}))
    assert scalings(plan(with_target(seen(0), 0), wanted)) == [(0, 3, False)]


def test_a_stopped_target_is_started_when_the_group_names_another_one():
    note = {"pausedReplicas": 3, "pausedTarget": {"kind": "Deployment", "name": "former"}}
    active = replace(seen(5, 5, 5), start_offsets={("t", index): 0 for index in range(3)})
    for reset in (None, RESET):
        for reference in (None, TARGET):
            wanted = asked(reset=reset, status=note) if reference else group(status=note)
            planned = plan(with_target(active, 0), desired(groups=(wanted,)))
            assert scalings(planned) == [(0, 3, False)]
            assert [each.target.name for each in planned.actions] == ["former"]


def test_of_a_stopped_target_that_is_gone_only_the_record_is_removed():
    note = {"pausedReplicas": 3, "pausedTarget": {"kind": "Deployment", "name": "former"}}
    missing = ObservedTarget(replicas=0, error="there is none", is_missing=True)
    wanted = asked(status=note)
    look = replace(with_target(seen(0), 0), targets={wanted.key: missing})
    assert scalings(plan(look, desired(groups=(wanted,)))) == [(0, 0, False)]


def test_a_deleted_groups_target_is_started_without_brokers_and_without_a_cluster():
    gone = asked(status={"pausedReplicas": 3}, metadata={"deletionTimestamp": "now"})
    rival = asked(metadata={"namespace": "n"})
    deleted = frozenset({gone.key})
    silent = ObservedCluster(is_reachable=False)
    stopped, started = (ObservedTarget(replicas=count) for count in (0, 3))
    terminating = make("Cluster", "c", {"pools": []}, metadata={"deletionTimestamp": "now"})
    worlds = [
        (desired(groups=(gone,), deleted=deleted), silent),
        (desired(groups=(rival, gone), deleted=deleted), observed().cluster),
        (desired(cluster=None, groups=(gone,), deleted=deleted), None),
        (
            desired(cluster=terminating, groups=(gone,), deleted=deleted | {terminating.key}),
            silent,
        ),
    ]
    for wanted, seen_cluster in worlds:
        look = Observed(cluster=seen_cluster, targets={gone.key: stopped})
        assert scalings(plan(look, wanted)) == [(0, 3, False)]
        # It is done once: nobody takes the record from a group that is gone.
        done = replace(look, targets={gone.key: started})
        assert not scalings(plan(done, wanted))
    waits = desired(cluster=cluster(paused=True), groups=(gone,), deleted=deleted)
    assert gone.key in [each.resource for each in plan(Observed(), waits).waiting]


def test_the_condition_says_whether_the_lag_is_within_its_target():
    wanted = desired(groups=(asked(),))
    for lag, state, reason in (
        (1, "True", Reason.LAG_WITHIN_TARGET),
        (11, "False", Reason.LAG_ABOVE_TARGET),
    ):
        look = with_target(seen(lag, 0, 0), 2)
        conditions = status(look, wanted, plan(look, wanted))[asked().key]
        found = next(each for each in conditions if each.type == "LagWithinTarget")
        assert (found.status, found.reason) == (state, reason)
    assert is_within_target(policy(drain_time="1m"), seen(100), None) is None


def test_a_spark_job_that_runs_is_active_though_its_group_is_empty():
    """It is no member of its group: its next commit would undo the reset."""
    spark = {
        "kind": "SparkApplication",
        "name": "job",
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
    }
    wanted = group(targetRef=spark, topics=["t"], reset=RESET)
    empty = replace(seen(5), state="Empty", start_offsets={("t", 0): 0})
    topics = {"t": ObservedTopic(partitions=1, replicas=1)}
    running = replace(
        observed(topics=topics, groups={"g": empty}),
        targets={wanted.key: ObservedTarget(replicas=1, running=1)},
    )
    planned = plan(running, desired(groups=(wanted,)))
    assert scalings(planned) == [(1, 0, True)]
    assert not any(isinstance(each, ResetOffsets) for each in planned.actions)
    stopped = replace(running, targets={wanted.key: ObservedTarget(replicas=0)})
    planned = plan(stopped, desired(groups=(wanted,)))
    assert [type(each) for each in planned.actions] == [ResetOffsets]


SPARK_TARGET = {
    "kind": "SparkApplication",
    "name": "job",
    "apiVersion": "sparkoperator.k8s.io/v1beta2",
}


def application(state: str = "RUNNING", **spec: Any) -> dict[str, Any]:
    """Return a job of Headrace's own with two executors, as its runner describes it."""
    ours = "local:///opt/headrace/headrace_jobs/jobs/cpu_load.py"
    return {
        "spec": {
            "type": "Python",
            "mainApplicationFile": ours,
            "executor": {"instances": 2},
            **spec,
        },
        "status": {"applicationState": {"state": state}, "executors": 2},
    }


def test_the_replicas_of_a_job_are_its_executors_where_they_change_without_a_new_driver():
    assert observed_application(application()) == ObservedTarget(replicas=2, running=2)
    paused = observed_application(application("SUSPENDED", suspend=True))
    assert paused == ObservedTarget(replicas=0)
    starting = {**application(), "status": {}}
    assert observed_application(starting) == ObservedTarget(replicas=2)
    assert observed_application(None).error


@pytest.mark.parametrize(
    "fixed",
    [
        application(dynamicAllocation={"enabled": True}),
        application(mainApplicationFile="local:///opt/orders/main.py"),
        # The published CRD, which has no /scale, drops our count of executors.
        application() | {"status": {"applicationState": {"state": "RUNNING"}}},
    ],
)
def test_lag_resizes_no_job_whose_driver_would_be_started_again(fixed):
    target = observed_application(fixed)
    assert (target.replicas, target.running) in {(1, 1), (1, 2)}
    wanted = group(targetRef=SPARK_TARGET, lagPolicy=LAG_POLICY)
    planned = plan(with_lag(wanted, target), desired(groups=(wanted,)))
    assert scalings(planned) == []
    [problem] = planned.problems
    assert problem.reason is Reason.NOT_SUPPORTED


def test_lag_resizes_a_job_of_headraces_own():
    wanted = group(targetRef=SPARK_TARGET, lagPolicy=LAG_POLICY)
    target = observed_application(application())
    planned = plan(with_lag(wanted, target), desired(groups=(wanted,)))
    assert (scalings(planned), planned.problems) == ([(2, 4, False)], ())


LAG_POLICY = {"target": {"maxLagRecords": 1}, "maxReplicas": 4}


def with_lag(wanted: Any, target: ObservedTarget) -> Any:
    """Return what is seen of a group that needs four readers, and of its target."""
    trend = Trend(now_ms=100_000, recommendations=((100_000, 4),))
    return replace(
        observed(groups={"g": seen(9, 9, 9, 9)}),
        targets={wanted.key: target},
        trends={wanted.key: trend},
    )


def test_a_group_that_never_committed_has_no_lag_of_0_and_changes_nothing():
    never = ObservedGroup(state="Stable", end_offsets={("t", each): 500 for each in range(4)})
    assert recommend(policy(max_lag_records=10), never, rates(), 3) == 3
    assert recommend(policy(minimum=0, max_lag_records=10), never, rates(), 0) == 1
    nothing = ObservedGroup(state="Empty", end_offsets={("t", 0): 0})
    assert recommend(policy(minimum=0, max_lag_records=10), nothing, rates(), 0) == 0
