"""A broker begins again with new volumes: never with what would be lost, never two at a time."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from headrace_operator.plan import (
    Observed,
    ObservedBroker,
    ObservedCluster,
    ObservedPartition,
    ObservedQuorum,
    ObservedReplica,
    ObservedTopic,
    Plan,
    Problem,
    RefillBroker,
    plan,
)
from headrace_operator.plan.brokers import target_of
from headrace_operator.plan.report import report
from headrace_operator.resources import Reason
from support.operator_resources import broker, cluster, desired

POOLS = [{"name": "a", "replicas": 3}]
REQUEST = {"broker": 2, "requestId": "sdb"}
WHOLE = ObservedPartition(replicas=(2, 1, 3), in_sync=(1, 2, 3), leader=2)


def quorum(*voters: int) -> ObservedQuorum:
    disks = tuple(ObservedReplica(node_id=each, directory_id=UUID(int=each)) for each in voters)
    return ObservedQuorum(leader_id=1, voters=disks)


def three(**second: Any) -> tuple[ObservedBroker, ...]:
    return (
        broker(1, ordinal=0),
        broker(2, ordinal=1, **second),
        broker(3, ordinal=2),
    )


def planned(
    partitions: Mapping[tuple[str, int], ObservedPartition] | None = None,
    requests: list[dict[str, Any]] | None = None,
    spec: dict[str, Any] | None = None,
    topics: Mapping[str, ObservedTopic] | None = None,
    **rest: Any,
) -> Plan:
    """Plan for three brokers of which the second is to have new volumes."""
    values = {
        "brokers": three(),
        "partitions": {("t", 0): WHOLE} if partitions is None else partitions,
        "quorum": quorum(1, 2, 3),
        **rest,
    }
    asked = [REQUEST] if requests is None else requests
    wanted = cluster(POOLS, replaceVolumes=asked, **(spec or {}))
    seen = Observed(cluster=ObservedCluster(**values), topics=topics or {})
    return plan(seen, desired(cluster=wanted))


def refilled(found: Plan) -> list[int]:
    return [each.node_id for each in found.actions if isinstance(each, RefillBroker)]


def said(found: Plan) -> str:
    return "\n".join(each.message for each in (*found.problems, *found.waiting))


def test_what_is_copied_again_is_said_before_it_is_done() -> None:
    sizes = {("t", 0): {1: 700, 2: 1000, 3: 1000}}
    found = planned(sizes=sizes, spec={"updatePolicy": "Plan"})
    assert not found.actions
    (action,) = found.proposed
    assert action.describe() == (
        "~ broker 2: new volumes (sdb); the others fill it again: 1 partitions, 1000 bytes"
    )
    assert refilled(planned(sizes=sizes)) == [2]
    approved = target_of(cluster(POOLS, replaceVolumes=[REQUEST]))
    spec = {"updatePolicy": "Plan", "approvedPlan": approved}
    assert refilled(planned(spec=spec)) == [2]


def test_an_approval_is_of_this_request_and_what_was_approved_before_stays_so() -> None:
    again = {**REQUEST, "requestId": "again"}
    targets = {target_of(cluster(replaceVolumes=each)) for each in ([], [REQUEST], [again])}
    assert len(targets) == 3
    assert target_of(cluster()) in targets


def test_it_is_done_once_for_each_request() -> None:
    assert planned(brokers=three(replacement="sdb")).is_empty
    assert refilled(planned(brokers=three(replacement="sda"))) == [2]
    assert planned(requests=[{"broker": 9, "requestId": "x"}]).is_empty


def test_a_broker_that_does_not_start_gets_new_volumes_as_well() -> None:
    down = three(is_registered=False, is_ready=False, failing="CrashLoopBackOff: EIO")
    partition = ObservedPartition(replicas=(2, 1, 3), in_sync=(1, 3), leader=1)
    assert refilled(planned({("t", 0): partition}, brokers=down)) == [2]


@pytest.mark.parametrize(
    ("partition", "words"),
    [
        (
            ObservedPartition(replicas=(2, 1, 3), in_sync=(1, 2), leader=2),
            "t-0 is not in sync on broker 3",
        ),
        (
            ObservedPartition(replicas=(2, 1), in_sync=(2,), leader=2),
            "t-0 is not in sync on broker 1",
        ),
        (ObservedPartition(replicas=(2, 1, 3), in_sync=(), leader=-1), "t-0 is not in sync"),
    ],
)
def test_never_while_another_copy_is_behind(partition: ObservedPartition, words: str) -> None:
    found = planned({("t", 0): partition})
    assert not refilled(found)
    assert words in said(found)


def test_partitions_of_others_do_not_matter() -> None:
    others = ObservedPartition(replicas=(1, 3), in_sync=(1,), leader=1)
    assert refilled(planned({("t", 0): WHOLE, ("u", 0): others})) == [2]


def test_the_only_replica_is_refused_with_the_way_out() -> None:
    only = ObservedPartition(replicas=(2,), in_sync=(2,), leader=2)
    found = planned({("t", 0): only})
    assert not refilled(found)
    (problem,) = found.problems
    assert problem.reason is Reason.REPLACEMENT_REFUSED
    assert "t-0 has its only replica there" in problem.message
    assert "headrace cluster drain 2" in problem.message


def test_the_only_voter_is_refused() -> None:
    found = planned({}, quorum=quorum(2))
    assert not refilled(found)
    assert "it alone votes in the metadata quorum" in said(found)


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ({"is_reachable": False}, "the brokers do not answer"),
        ({"quorum": None}, "nobody leads the metadata quorum"),
        ({"reassigning": frozenset({("u", 1)})}, "replicas of 1 partitions move"),
        ({"quorum": quorum(2, 9)}, "no majority of the metadata quorum"),
    ],
)
def test_what_it_waits_for_is_said(rest: dict[str, Any], words: str) -> None:
    found = planned(**rest)
    assert not refilled(found)
    assert words in said(found)


def test_nobody_else_may_be_away() -> None:
    one, two, _ = three()
    away = broker(3, ordinal=2, is_registered=False, is_ready=False)
    found = planned(brokers=(one, two, away))
    assert not refilled(found)
    assert "broker 3 is not ready" in said(found)


def test_a_topic_that_would_refuse_writes_is_named_and_waited_for() -> None:
    topics = {"t": ObservedTopic(partitions=1, replicas=3, config={"min.insync.replicas": "3"})}
    found = planned(topics=topics)
    assert not refilled(found)
    assert "t has 3 replicas and min.insync.replicas 3" in said(found)
    # Where the broker is away already, nothing more is refused than is refused now.
    down = three(is_registered=False, is_ready=False)
    partition = ObservedPartition(replicas=(2, 1, 3), in_sync=(1, 3), leader=1)
    assert refilled(planned({("t", 0): partition}, topics=topics, brokers=down)) == [2]


def test_one_broker_after_the_other_each_filled_before_the_next() -> None:
    both = [REQUEST, {"broker": 3, "requestId": "sdb"}]
    found = planned(requests=both)
    assert refilled(found) == [2]
    assert "new volumes for broker 3 (sdb) wait: broker 2 comes first" in said(found)
    behind = ObservedPartition(replicas=(2, 1, 3), in_sync=(1, 3), leader=1)
    filling = planned(
        {("t", 0): behind, ("u", 0): WHOLE},
        requests=both,
        brokers=three(replacement="sdb", is_refilling=True),
        sizes={("t", 0): {1: 900, 2: 300}},
    )
    assert not refilled(filling)
    assert "1 of 2 partitions are left to fill, 600 bytes" in said(filling)


def test_a_request_that_waits_holds_up_no_restart() -> None:
    behind = ObservedPartition(replicas=(2, 1, 3), in_sync=(1, 2), leader=2)
    failing = broker(
        3, ordinal=2, is_registered=False, is_ready=False, failing="x", outdated=("i",)
    )
    one, two, _ = three()
    found = planned({("t", 0): behind}, brokers=(one, two, failing))
    assert [type(each).__name__ for each in found.actions] == ["ReconfigureBroker"]
    assert not any(isinstance(each, Problem) for each in found.problems)


def test_on_this_machine_it_is_refused_with_what_to_do() -> None:
    found = planned(brokers=(broker(1), broker(2), broker(3)))
    assert not refilled(found)
    assert "delete its directory" in said(found)


def test_while_it_is_filled_again_the_cluster_is_not_ready() -> None:
    brokers = three(replacement="sdb", is_refilling=True)
    seen = Observed(cluster=ObservedCluster(brokers=brokers, partitions={("t", 0): WHOLE}))
    wanted = desired(cluster=cluster(POOLS, replaceVolumes=[REQUEST]))
    assert wanted.cluster is not None
    conditions = report(seen, wanted, plan(seen, wanted))[wanted.cluster.key]["conditions"]
    ready = next(each for each in conditions if each["type"] == "Ready")
    assert ready["status"] == "False"
    assert "broker 2 begins again with new volumes" in ready["message"]
