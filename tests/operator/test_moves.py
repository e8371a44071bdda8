"""How far the operator's own moves are, and that they can be paused."""

import json
from typing import Any

from headrace_operator.plan import (
    AlterClusterConfig,
    MoveReplicas,
    Observed,
    ObservedCluster,
    ObservedPartition,
    plan,
)
from headrace_operator.plan.cordons import DRAINED_BROKERS
from headrace_operator.plan.moves import MOVES_THROTTLE, progress_of
from headrace_operator.plan.report import report
from headrace_operator.resources import Cluster, Reason
from support.operator_resources import broker, cluster, desired, make

POOLS = [{"name": "a", "replicas": 2}]
SLOW = cluster(POOLS, moves={"throttle": 100})
#: Broker 3 leaves; a partition moves already, and has 400 of its 1,000 bytes where it goes to.
MOVING = {
    ("t", 0): ObservedPartition(replicas=(3, 1), in_sync=(3,), leader=3),
    ("t", 1): ObservedPartition(replicas=(3,), in_sync=(3,), leader=3),
    ("t", 2): ObservedPartition(replicas=(2,), in_sync=(2,), leader=2),
}
SIZES = {("t", 0): {3: 1000, 1: 400}, ("t", 1): {3: 2000}, ("t", 2): {2: 5000}}


def seen(**rest: Any) -> ObservedCluster:
    joined = {"roles": ("broker",)}
    values: dict[str, Any] = {
        "brokers": (broker(1), broker(2, **joined), broker(3, replicas=2, **joined)),
        "partitions": MOVING,
        "reassigning": frozenset({("t", 0)}),
        "adding": {("t", 0): (1,)},
        "sizes": SIZES,
        "live_config": {DRAINED_BROKERS: "3"},
    }
    return ObservedCluster(**(values | rest))


def told(wanted: Cluster, found: ObservedCluster) -> dict[str, Any]:
    observed, resources = Observed(cluster=found), desired(cluster=wanted)
    status = report(observed, resources, plan(observed, resources))[wanted.key]
    return json.loads(json.dumps(dict(status)))  # type: ignore[no-any-return]  # JSON


def test_it_says_what_is_left_to_copy_and_how_long_that_takes() -> None:
    # 600 of the first, which broker 1 gets, and 2,000 that either of two may get.
    assert told(SLOW, seen())["moves"] == {
        "partitionsMoving": 1,
        "partitionsLeft": 2,
        "bytesTotal": 2600,
        "bytesLeft": 2600,
        "secondsLeft": 16,
    }


def test_what_there_was_to_copy_is_remembered() -> None:
    status = told(SLOW, seen())
    status.pop("conditions")
    later = make("Cluster", "c", {"pools": POOLS, "moves": {"throttle": 100}}, status=status)
    further = {**SIZES, ("t", 0): {3: 1000, 1: 1000}, ("t", 1): {3: 2000}}
    moves = told(later, seen(sizes=further))["moves"]
    assert (moves["bytesTotal"], moves["bytesLeft"]) == (2600, 2000)


def test_the_share_of_a_broker_that_joined_counts() -> None:
    balance = {("t", 2): (1,), ("t", 1): (3,)}
    found = seen(balance=balance, reassigning=frozenset(), adding={}, live_config={})
    progress = progress_of(SLOW, found)
    assert progress is not None
    assert (progress.partitions_left, progress.bytes_left) == (1, 5000)


def test_without_sizes_or_a_throttle_it_promises_nothing() -> None:
    moves = told(SLOW, seen(sizes={}))["moves"]
    assert moves == {"partitionsMoving": 1, "partitionsLeft": 2}
    fast = cluster(POOLS, moves={"throttle": 0})
    assert "secondsLeft" not in told(fast, seen())["moves"]


def test_where_nothing_moves_nothing_is_said() -> None:
    at_rest = seen(reassigning=frozenset(), adding={}, live_config={}, sizes={})
    assert "moves" not in told(SLOW, at_rest)
    # Nobody answers: what was known stays.
    assert "moves" not in told(SLOW, seen(is_reachable=False))


def test_a_pause_begins_no_move_and_says_so() -> None:
    wanted = desired(cluster=SLOW)
    moves = plan(Observed(cluster=seen()), wanted).actions
    assert any(isinstance(each, MoveReplicas) for each in moves)
    paused = desired(cluster=cluster(POOLS, moves={"paused": True}))
    planned = plan(Observed(cluster=seen()), paused)
    assert not any(isinstance(each, MoveReplicas) for each in planned.actions)
    assert planned.waiting[0].reason is Reason.PAUSED
    assert "spec.moves.paused" in planned.waiting[0].message
    # A share of a broker that joined, too.
    joined = seen(
        brokers=(broker(1), broker(2, roles=("broker",))),
        partitions={("t", 2): MOVING["t", 2]},
        balance={("t", 2): (1,)},
        reassigning=frozenset(),
        adding={},
        live_config={},
    )
    planned = plan(Observed(cluster=joined), paused)
    assert [each.reason for each in planned.waiting] == [Reason.PAUSED]
    assert not planned.actions


def test_another_throttle_holds_for_what_moves_already() -> None:
    def changed(throttle: object, **rest: Any) -> list[tuple[dict[str, str], tuple[str, ...]]]:
        slow = {DRAINED_BROKERS: "3", MOVES_THROTTLE: "100"}
        found = seen(**({"live_config": slow} | rest))
        wanted = cluster(POOLS, moves={"throttle": throttle, "concurrent": 1})
        actions = plan(Observed(cluster=found), desired(cluster=wanted)).actions
        return [
            (dict(each.set), each.delete)
            for each in actions
            if isinstance(each, AlterClusterConfig)
        ]

    assert changed("2k") == [({MOVES_THROTTLE: "2000"}, ())]
    assert changed(0) == [({}, (MOVES_THROTTLE,))]
    assert changed(100) == []
    # None was set: what moves is somebody else's.
    assert changed("2k", live_config={DRAINED_BROKERS: "3"}) == []
