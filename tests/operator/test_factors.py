"""Another replication factor of a topic that exists."""

from typing import Any

import pytest

from headrace_operator.plan import (
    AlterClusterConfig,
    MoveReplicas,
    Observed,
    ObservedCluster,
    ObservedPartition,
    ObservedTopic,
    Plan,
    plan,
)
from headrace_operator.plan.actions import ChangeReplicationFactor
from headrace_operator.plan.cordons import DRAINED_BROKERS
from headrace_operator.plan.moves import MOVES_THROTTLE
from headrace_operator.resources import Reason
from support.operator_resources import broker, cluster, desired, topic

CHANGED: dict[str, Any] = {"metadata": {"generation": 2}, "status": {"reconciledGeneration": 1}}
POOLS = [{"name": "a", "replicas": 3}]
BROKERS = tuple(broker(node_id, roles=("broker",)) for node_id in (1, 2, 3))


def partition(*replicas: int, in_sync: tuple[int, ...] | None = None) -> ObservedPartition:
    alive = replicas if in_sync is None else in_sync
    return ObservedPartition(replicas=replicas, in_sync=alive, leader=alive[0] if alive else -1)


def planned(
    wanted: int, *found: ObservedPartition, spec: dict[str, Any] | None = None, **rest: Any
) -> Plan:
    resource = topic(partitions=len(found), replicas=wanted, **rest.pop("topic", {}))
    config = rest.pop("config", {})
    existing = ObservedTopic(
        partitions=len(found),
        replicas=min(len(each.replicas) for each in found),
        config=config,
    )
    partitions = {("t", index): each for index, each in enumerate(found)}
    seen = ObservedCluster(**{"brokers": BROKERS, "partitions": partitions, **rest})
    wants = desired(resource, cluster=cluster(POOLS, **(spec or {})))
    return plan(Observed(cluster=seen, topics={"t": existing}), wants)


def moves(found: Plan) -> dict[int, tuple[int, ...]]:
    for action in found.actions:
        if isinstance(action, ChangeReplicationFactor):
            return {index: replicas for (_, index), replicas in action.moves.items()}
    return {}


def test_more_replicas_go_to_brokers_that_have_the_fewest() -> None:
    found = planned(2, partition(1), partition(1), partition(2))
    assert moves(found) == {0: (1, 3), 1: (1, 2), 2: (2, 3)}
    (action,) = found.actions
    assert isinstance(action, MoveReplicas)
    assert action.throttle == 50 << 20
    assert action.describe() == "~ topic t: replicas 1 -> 2 of 3 partitions"
    assert not planned(2, partition(1, 3), partition(1, 2), partition(2, 3)).actions


def test_they_go_to_racks_where_their_partition_is_not() -> None:
    racks = (broker(1, rack="x"), broker(2, rack="x"), broker(3, rack="y"))
    busy = [partition(1), *[partition(3, 1)] * 3]
    assert moves(planned(2, *busy, brokers=racks))[0] == (1, 3)
    found = planned(2, partition(1, 2, 3), brokers=racks, topic=CHANGED)
    assert moves(found)[0] == (1, 3)


def test_fewer_replicas_give_up_first_what_is_out_of_sync_and_copy_nothing() -> None:
    spec = {"moves": {"concurrent": 1}}
    all_of_them = [partition(1, 2, 3, in_sync=(1, 3)), partition(2, 3, 1), partition(3, 1, 2)]
    found = planned(2, *all_of_them, spec=spec, topic=CHANGED)
    assert moves(found)[0] == (1, 3)
    assert len(moves(found)) == 3
    (action,) = found.actions
    assert isinstance(action, MoveReplicas)
    assert action.throttle is None


def test_the_first_replica_is_not_given_up_while_it_is_in_sync() -> None:
    assert moves(planned(1, partition(3, 1), partition(3, 2), topic=CHANGED)) == {0: (3,), 1: (3,)}
    late = partition(3, 1, in_sync=(1,))
    assert moves(planned(1, late, topic=CHANGED)) == {0: (1,)}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (planned(1, partition(1, 2, in_sync=()), topic=CHANGED), "t-0 has no leader"),
        (planned(2, partition(1, 2, 3, in_sync=(1,)), topic=CHANGED), "t-0 is not in sync"),
    ],
)
def test_what_could_lose_records_waits(found: Plan, words: str) -> None:
    assert not found.actions
    assert words in found.waiting[0].message


def test_more_replicas_than_brokers_wait_for_brokers_that_come_and_else_are_a_problem() -> None:
    found = planned(4, partition(1))
    assert [each.reason for each in found.problems] == [Reason.TOO_FEW_BROKERS]
    # Who leaves gets none.
    found = planned(3, partition(1), live_config={DRAINED_BROKERS: "3"})
    waits = [each for each in found.waiting if each.resource[0] == "Topic"]
    assert [each.reason for each in waits] == [Reason.WAITING_FOR_BROKERS]


def test_no_more_move_at_once_than_the_cluster_says_all_topics_together() -> None:
    spec = {"moves": {"concurrent": 3}}
    ten = [partition(1) for _ in range(10)]
    found = planned(2, *ten, spec=spec)
    assert len(moves(found)) == 3
    assert "wait" in found.waiting[0].message
    moving = {("other", index): (2,) for index in range(2)}
    found = planned(2, *ten, spec=spec, reassigning=frozenset(moving), adding=moving)
    assert len(moves(found)) == 1


def test_it_is_not_ready_before_the_copies_are_made() -> None:
    found = planned(
        2,
        partition(1, 3, in_sync=(1,)),
        reassigning=frozenset({("t", 0)}),
        adding={("t", 0): (3,)},
    )
    assert not found.actions
    assert "on their way" in found.waiting[0].message
    # Another broker's replica moves, which is not this topic's business.
    found = planned(
        1,
        partition(1, 3, in_sync=(1,)),
        reassigning=frozenset({("t", 0)}),
        adding={("t", 0): (3,)},
    )
    assert found.is_empty


def test_replicas_that_somebody_else_added_are_left_and_said() -> None:
    found = planned(1, partition(1, 2))
    assert not found.actions
    (problem,) = found.problems
    assert (problem.reason, problem.is_stalling) == (Reason.DRIFT_REPORTED, False)
    # Right after a move it may only seem so.
    assert planned(1, partition(1), partition(1, 2)).is_empty
    moving = frozenset({("t", 0)})
    assert not planned(1, partition(1, 2), reassigning=moving, adding={("t", 0): (2,)}).problems


def test_a_pause_holds_for_topics_too() -> None:
    found = planned(2, partition(1), spec={"moves": {"paused": True}})
    assert not found.actions
    assert [each.reason for each in found.waiting] == [Reason.PAUSED]


def test_another_factor_that_somebody_made_is_reverted_reported_or_ignored() -> None:
    found = planned(2, partition(1), topic={"drift": "Report"})
    assert not found.actions
    assert found.problems[0].reason is Reason.DRIFT_REPORTED
    assert planned(2, partition(1), topic={"drift": "Ignore"}).is_empty


def test_the_throttle_is_not_taken_back_while_a_topic_is_about_to_move() -> None:
    slow = {MOVES_THROTTLE: str(50 << 20)}
    at_rest = planned(1, partition(1), live_config=slow)
    assert any(isinstance(each, AlterClusterConfig) for each in at_rest.actions)
    found = planned(2, partition(1), live_config=slow)
    assert [type(each) for each in found.actions] == [ChangeReplicationFactor]
