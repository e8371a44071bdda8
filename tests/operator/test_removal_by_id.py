"""A certain broker leaves for good: drained first, and no place in its pool is left without one."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from headrace_operator.plan import (
    MoveReplicas,
    Observed,
    ObservedBroker,
    ObservedCluster,
    ObservedPartition,
    ObservedQuorum,
    ObservedReplica,
    Plan,
    RemoveVoter,
    StartBroker,
    StopBroker,
    plan,
)
from headrace_operator.plan.brokers import target_of
from headrace_operator.plan.pools import compare_pools
from headrace_operator.resources import Reason
from support.operator_resources import CONFIG, broker, cluster, desired

T0 = ("t", 0)


def members(*node_ids: int, **rest: Any) -> tuple[ObservedBroker, ...]:
    """Brokers in the places of a StatefulSet, in this order."""
    return tuple(
        broker(each, ordinal=place, roles=("broker",), **rest)
        for place, each in enumerate(node_ids)
    )


def on(*replicas: int) -> ObservedPartition:
    return ObservedPartition(replicas=replicas, in_sync=replicas, leader=replicas[0])


def planned(
    brokers: tuple[ObservedBroker, ...],
    replicas: int,
    removed: list[int],
    partitions: dict[tuple[str, int], ObservedPartition] | None = None,
    **rest: Any,
) -> Plan:
    counted = tuple(
        replace(
            each,
            replicas=sum(each.node_id in one.replicas for one in (partitions or {}).values()),
        )
        for each in brokers
    )
    wanted = cluster([{"name": "a", "replicas": replicas}], removeBrokers=removed)
    seen = ObservedCluster(brokers=counted, partitions=partitions or {}, **rest)
    return plan(Observed(cluster=seen), desired(cluster=wanted))


def test_it_is_drained_first_and_the_last_stays_meanwhile() -> None:
    found = planned(members(1, 2, 3, 4), 3, [2], {T0: on(1, 2, 4)})
    (move,) = [each for each in found.actions if isinstance(each, MoveReplicas)]
    assert set(move.moves[T0]) == {1, 3, 4}
    assert not any(isinstance(each, StopBroker) for each in found.actions)
    assert Reason.WAITING_FOR_DRAIN in [each.reason for each in found.waiting]


def test_in_its_place_another_begins_by_an_id_that_nobody_had() -> None:
    (stop,) = planned(members(1, 2, 3, 4), 3, [2]).actions
    assert stop == StopBroker(resource=cluster().key, node_id=2, pool="a", successor=5)
    assert stop.describe() == "- broker 2 (pool a); broker 5 begins in its place"
    (stop,) = planned(members(1, 3, 4), 3, [1]).actions
    assert (stop.node_id, stop.successor) == (1, 2)
    # An id that is to go is given to nobody.
    (start,) = planned(members(1, 3), 3, [2]).actions
    assert (type(start), start.node_id) == (StartBroker, 4)


def test_the_pool_shrinks_when_the_other_one_is_there() -> None:
    one, _, three, four = members(1, 2, 3, 4)
    next_one = broker(5, ordinal=1, roles=("broker",), succeeds=2, is_refilling=True)
    brokers = (one, next_one, three, four)
    waits = planned(brokers, 3, [2], {T0: on(1, 3, 4)})
    assert not waits.actions
    assert not waits.problems
    said = [each.message for each in waits.waiting]
    assert any("broker 5 begins in the place of broker 2" in each for each in said), said
    begun = (one, replace(next_one, succeeds=None, is_refilling=False), three, four)
    (move,) = [
        each
        for each in planned(begun, 3, [2], {T0: on(1, 3, 4)}).actions
        if isinstance(each, MoveReplicas)
    ]
    assert set(move.moves[T0]) == {1, 3, 5}
    (stop,) = planned(begun, 3, [2], {T0: on(1, 3, 5)}).actions
    assert (stop.node_id, stop.successor) == (4, None)
    assert planned(begun[:3], 3, [2], {T0: on(1, 3, 5)}).is_empty


def test_the_last_of_a_pool_that_shrinks_needs_nobody_in_its_place() -> None:
    (stop,) = planned(members(1, 2, 3, 4), 3, [4]).actions
    assert (stop.node_id, stop.successor) == (4, None)


def test_one_place_after_the_other() -> None:
    (stop,) = planned(members(1, 2, 3, 4), 4, [3, 2]).actions
    assert (stop.node_id, stop.successor) == (2, 5)


def test_with_as_many_replicas_as_brokers_it_is_refused_and_all_stays() -> None:
    wanted = cluster(
        [{"name": "a", "replicas": 3}], removeBrokers=[2], config={"min.insync.replicas": 3}
    )
    brokers = tuple(replace(each, replicas=1) for each in members(1, 2, 3))
    seen = ObservedCluster(brokers=brokers, partitions={T0: on(1, 2, 3)})
    found = plan(Observed(cluster=seen), desired(cluster=wanted))
    assert [each.reason for each in found.problems] == [Reason.DRAIN_REFUSED]
    assert not any(isinstance(each, StopBroker | MoveReplicas) for each in found.actions)


def test_who_is_not_there_is_not_missed() -> None:
    assert planned(members(1, 2, 3), 3, [7]).is_empty


def test_where_places_are_not_counted_it_just_goes() -> None:
    brokers = tuple(replace(each, ordinal=None) for each in members(1, 2, 3, 4))
    (stop,) = planned(brokers, 3, [2]).actions
    assert (stop.node_id, stop.successor) == (2, None)
    started, stopped = planned(brokers, 4, [2]).actions
    assert (type(started), started.node_id) == (StartBroker, 5)
    assert (stopped.node_id, stopped.successor) == (2, None)


def test_a_voter_leaves_two_that_vote_not_one() -> None:
    brokers = tuple(
        broker(each, ordinal=each - 1, roles=roles)
        for each, roles in (
            *((each, ("broker", "controller")) for each in (1, 2, 3)),
            (4, ("broker",)),
        )
    )
    disks = tuple(ObservedReplica(node_id=each, directory_id=UUID(int=each)) for each in (1, 2, 3))
    quorum = ObservedQuorum(leader_id=1, voters=disks)
    wanted = cluster([{"name": "a", "replicas": 3}], removeBrokers=[2])
    seen = ObservedCluster(brokers=brokers, quorum=quorum)
    found = plan(Observed(cluster=seen), desired(cluster=wanted))
    assert [each.node_id for each in found.actions if isinstance(each, RemoveVoter)] == [2]
    left = replace(quorum, voters=tuple(each for each in disks if each.node_id != 2))
    found = plan(Observed(cluster=replace(seen, quorum=left)), desired(cluster=wanted))
    (stop,) = found.actions
    assert (stop.node_id, stop.successor) == (2, 5)


def test_an_approval_is_of_these_brokers() -> None:
    targets = [target_of(cluster(removeBrokers=each)) for each in ([], [1], [2], [1, 2], [2, 1])]
    assert len(set(targets)) == 4
    assert target_of(cluster()) == targets[0]


@pytest.mark.parametrize("count", range(1, 7))
@pytest.mark.parametrize("wanted", range(1, 7))
def test_whatever_is_named_it_ends_with_as_many_as_are_wanted(count: int, wanted: int) -> None:
    """Each pass does what is planned; a set has no gaps at any time."""
    for named in range(1 << count):
        removed = [each + 1 for each in range(count) if named >> each & 1]
        spec = cluster([{"name": "a", "replicas": wanted}], removeBrokers=removed)
        brokers = list(members(*range(1, count + 1)))
        for _ in range(30):
            seen = Observed(cluster=ObservedCluster(brokers=tuple(brokers)))
            pools = compare_pools(seen, spec, CONFIG)
            if not pools.starts and not pools.surplus:
                waiting = [each for each in brokers if each.succeeds is not None]
                if not waiting:
                    break
                brokers = [replace(each, succeeds=None) for each in brokers]
            brokers += [
                broker(each.node_id, ordinal=len(brokers) + number)
                for number, each in enumerate(pools.starts)
            ]
            for each in sorted(pools.surplus, key=lambda one: -(one.ordinal or 0)):
                after = pools.successors.get(each.node_id)
                brokers.remove(each)
                if after is not None:
                    brokers.append(replace(each, node_id=after, succeeds=each.node_id))
            places = sorted(each.ordinal or 0 for each in brokers)
            assert places == list(range(len(brokers)))
            assert len({each.node_id for each in brokers}) == len(brokers)
        assert len(brokers) == wanted, (removed, brokers)
        assert not {each.node_id for each in brokers} & set(removed)
