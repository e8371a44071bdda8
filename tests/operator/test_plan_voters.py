"""Plans of who votes in the metadata quorum, who is cordoned, and how a cluster shrinks to one."""

import uuid
from dataclasses import replace

import pytest

from headrace_operator.plan import (
    AddVoter,
    CordonBrokers,
    MoveReplicas,
    Observed,
    ObservedCluster,
    ObservedPartition,
    ObservedQuorum,
    ObservedReplica,
    RemoveVoter,
    StartBroker,
    StopBroker,
    plan,
)
from headrace_operator.plan.cordons import DRAINED_BROKERS
from headrace_operator.resources import Reason
from support.operator_resources import broker, cluster, desired, existing, topic

BEHIND = 60_000


def disk(number):
    return uuid.UUID(int=number)


def replica(node_id, directory=None, behind_ms=0):
    return ObservedReplica(
        node_id=node_id, directory_id=disk(directory or node_id), behind_ms=behind_ms
    )


def quorum(voters, observers=(), leader=1):
    def replicas(found):
        return tuple(replica(each) if isinstance(each, int) else each for each in found)

    return ObservedQuorum(leader_id=leader, voters=replicas(voters), observers=replicas(observers))


def node(node_id, **rest):
    return broker(node_id, controller_address=f"127.0.0.1:{9000 + node_id}", **rest)


def nodes(count, **rest):
    return [node(node_id, **rest) for node_id in range(1, count + 1)]


def partition(*replicas):
    return ObservedPartition(replicas=replicas, in_sync=replicas, leader=replicas[0])


def planned(wanted, brokers, quorum, partitions=None, manifests=(), **rest):
    counted = [
        replace(
            each,
            replicas=sum(each.node_id in one.replicas for one in (partitions or {}).values()),
        )
        for each in brokers
    ]
    config = rest.pop("config", {})
    seen = ObservedCluster(
        brokers=tuple(replace(each, config=config) for each in counted),
        partitions=partitions or {},
        quorum=quorum,
        **rest.pop("cluster", {}),
    )
    pools = rest.pop("pools", None) or [{"name": "a", "replicas": wanted}]
    spec = cluster(pools, config=config)
    is_complete = rest.pop("is_complete", True)
    return plan(
        Observed(cluster=seen, **rest), desired(*manifests, cluster=spec, is_complete=is_complete)
    )


def moves(found):
    (move,) = [each for each in found.actions if isinstance(each, MoveReplicas)]
    return move.moves


def test_who_joins_votes_one_after_the_other_and_then_nothing_is_left_to_do():
    first = planned(3, nodes(3), quorum([1], [2, 3]))
    assert first.actions == (
        AddVoter(resource=cluster().key, node_id=2, directory_id=disk(2), address="127.0.0.1:9002"),
    )
    (second,) = planned(3, nodes(3), quorum([1, 2], [3])).actions
    assert second.node_id == 3
    assert planned(3, nodes(3), quorum([1, 2, 3])).is_empty


def test_nobody_votes_who_does_not_follow_the_log():
    late = replica(2, behind_ms=BEHIND)
    never = replica(3, behind_ms=None)
    waits = planned(3, nodes(3), quorum([1], [late, never]))
    assert not waits.actions
    assert [wait.reason for wait in waits.waiting] == [Reason.WAITING_FOR_VOTERS]


def test_two_brokers_have_one_voter_and_a_fourth_does_not_vote():
    assert planned(2, nodes(2), quorum([1], [2])).is_empty
    assert planned(4, nodes(4), quorum([1, 2, 3], [4])).is_empty
    # One that only was a broker cannot vote, and two voters are worse than one.
    roles = [node(1), node(2, roles=("broker",)), node(3)]
    assert planned(3, roles, quorum([1], [2, 3])).is_empty


def test_an_emptied_disks_vote_is_taken_away_before_the_new_one_gets_it():
    old, new = replica(3, 30, behind_ms=BEHIND), replica(3, 31)
    (action,) = planned(3, nodes(3), quorum([1, 2, old], [new])).actions
    assert (type(action), action.directory_id) == (RemoveVoter, disk(30))
    (action,) = planned(3, nodes(3), quorum([1, 2], [new])).actions
    assert (type(action), action.directory_id) == (AddVoter, disk(31))


def test_a_disk_is_not_given_up_while_the_others_could_not_decide_without_it():
    old, new = replica(3, 30, behind_ms=BEHIND), replica(3, 31)
    dead = replica(2, behind_ms=BEHIND)
    waits = planned(3, nodes(3), quorum([1, dead, old], [new]))
    assert not waits.actions
    assert "broker 2 does not follow" in waits.waiting[0].message
    # It did not come back yet, so it may still come back with its disk.
    assert planned(3, nodes(3), quorum([1, 2, old])).is_empty


@pytest.mark.parametrize(("leader", "order"), [(1, [3, 2]), (2, [3, 2]), (3, [2, 3])])
def test_who_leaves_loses_its_vote_after_its_replicas_and_the_active_controller_comes_last(
    leader, order
):
    voters, observers, brokers = [1, 2, 3], [], nodes(3)
    partitions = {("t", 0): partition(2), ("t", 1): partition(3)}
    first = planned(1, brokers, quorum(voters, leader=leader), partitions)
    assert [type(each) for each in first.actions] == [MoveReplicas]
    done = []
    for _ in range(10):
        step = planned(1, brokers, quorum(voters, observers, leader=leader))
        if not step.actions:
            break
        for action in step.actions:
            if isinstance(action, RemoveVoter):
                voters = [each for each in voters if each != action.node_id]
                observers = [*observers, action.node_id]
                leader = leader if leader in voters else voters[0]
                done.append(action.node_id)
            else:
                assert isinstance(action, StopBroker)
                assert action.node_id not in voters
                brokers = [each for each in brokers if each.node_id != action.node_id]
                observers = [each for each in observers if each != action.node_id]
    assert done == order
    assert [each.node_id for each in brokers] == voters == [1]
    assert step.is_empty


def test_two_that_stay_become_one_voter_when_the_third_is_gone_and_not_before():
    everywhere = {("t", 0): partition(1, 2, 3)}
    keeps = [topic("t", replicas=3)]
    refused = planned(2, nodes(3), quorum([1, 2, 3]), everywhere, keeps)
    assert not any(isinstance(each, RemoveVoter) for each in refused.actions)
    both = {("t", 0): partition(1, 2)}
    (action,) = [
        each
        for each in planned(2, nodes(2), quorum([1, 2]), both).actions
        if isinstance(each, RemoveVoter)
    ]
    assert action.node_id == 2


def test_a_pool_that_takes_over_votes_before_the_old_one_stops_to():
    brokers = [
        *nodes(3),
        *(node(node_id, pool="b") for node_id in (4, 5, 6)),
    ]
    pools = [{"name": "b", "replicas": 3}]
    (action,) = [
        each
        for each in planned(0, brokers, quorum([1, 2, 3], [4, 5, 6]), pools=pools).actions
        if isinstance(each, AddVoter | RemoveVoter | StopBroker)
    ]
    assert (type(action), action.node_id) == (AddVoter, 4)
    full = quorum([1, 2, 3, 4, 5, 6])
    (action,) = planned(0, brokers, full, pools=pools).actions
    assert (type(action), action.node_id) == (RemoveVoter, 3)


def test_the_last_that_can_vote_stays_with_the_reason():
    brokers = [node(1), node(2, pool="b", roles=("broker",))]
    refused = planned(0, brokers, quorum([1], [2]), pools=[{"name": "b", "roles": ["broker"]}])
    assert not refused.actions
    (problem,) = refused.problems
    assert problem.reason is Reason.DRAIN_REFUSED
    assert "broker 1 votes in the metadata quorum and nobody that stays can" in problem.message


def test_while_nobody_says_who_votes_no_controller_stops():
    waits = planned(1, nodes(3), None)
    assert not waits.actions
    assert {wait.reason for wait in waits.waiting} == {Reason.WAITING_FOR_VOTERS}


def test_what_a_broker_has_is_not_guessed_while_none_answers():
    brokers = [node(1), node(2, roles=("broker",)), node(3, roles=("broker",), is_running=False)]
    waits = planned(1, brokers, None, cluster={"is_reachable": False})
    assert [(type(each), each.node_id) for each in waits.actions] == [(StartBroker, 3)]


# Fewer replicas

INTERNAL = {("__consumer_offsets", 0): partition(1, 2, 3)}


def test_the_brokers_own_topics_and_those_that_left_it_open_get_as_many_replicas_as_are_left():
    partitions = INTERNAL | {("t", 0): partition(3, 1, 2), ("u", 0): partition(2, 3, 1)}
    topics = [topic("t"), topic("u", replicas=1)]
    found = moves(planned(1, nodes(3), quorum([1, 2, 3]), partitions, topics))
    assert found == dict.fromkeys(partitions, (1,))
    # Some partitions have got there already; the others are not taken for half moved.
    some = partitions | {("t", 1): partition(1)}
    assert moves(planned(1, nodes(3), quorum([1, 2, 3]), some, topics)) == found
    found = moves(planned(2, nodes(3), quorum([1, 2, 3]), partitions, topics))
    assert (found["t", 0], found["u", 0]) == ((1, 2), (2, 1))


@pytest.mark.parametrize(
    ("spec", "config", "said"),
    [
        ({"replicas": 3}, {}, "its Topic says replicas: 3"),
        (None, {}, "no Topic says that fewer are enough"),
        ({}, {"min_insync_replicas": "2"}, "it has min.insync.replicas 2"),
    ],
)
def test_a_topic_keeps_the_replicas_that_somebody_asked_for(spec, config, said):
    partitions = {("t", 0): partition(1, 2, 3)}
    manifests = [] if spec is None else [topic("t", **spec)]
    refused = planned(
        1,
        nodes(3),
        quorum([1, 2, 3]),
        partitions,
        manifests,
        topics={"t": existing(1, 3, **config)},
    )
    assert not any(isinstance(each, MoveReplicas | RemoveVoter) for each in refused.actions)
    problem = next(each for each in refused.problems if each.reason is Reason.DRAIN_REFUSED)
    assert f"t-0 has 3 replicas and 1 brokers would be left, and {said}" in problem.message


def test_the_clusters_own_settings_must_not_ask_for_more_brokers_than_are_left():
    config = {"min.insync.replicas": "2"}
    refused = planned(1, nodes(3), quorum([1, 2, 3]), INTERNAL, config=config)
    assert "spec.config says min.insync.replicas: 2" in refused.problems[0].message
    # Where nothing loses replicas by it, it is nobody's business here.
    one = {("t", 0): partition(3)}
    assert moves(planned(1, nodes(3), quorum([1, 2, 3]), one, config=config)) == {("t", 0): (1,)}


def test_topics_that_were_not_read_this_time_are_not_taken_for_unwanted():
    partitions = {("t", 0): partition(1, 2, 3)}
    waits = planned(1, nodes(3), quorum([1, 2, 3]), partitions, is_complete=False)
    assert not waits.problems
    assert not waits.actions


# Cordons


def cordons(wanted, drained="", *, brokers=None, partitions=None, **rest):
    live = {DRAINED_BROKERS: drained} if drained else {}
    found = planned(
        wanted,
        brokers or nodes(4),
        quorum([1, 2, 3], [4]),
        partitions,
        cluster={"live_config": live, **rest},
    )
    return found, [each for each in found.actions if isinstance(each, CordonBrokers)]


def test_a_broker_is_cordoned_before_its_replicas_move():
    partitions = {("t", 0): partition(4)}
    found, (cordon,) = cordons(3, partitions=partitions)
    assert (cordon.cordoned, cordon.uncordoned, cordon.drained) == ((4,), (), (4,))
    assert [type(each) for each in found.actions] == [CordonBrokers, MoveReplicas]
    assert not cordons(3, "4", partitions=partitions)[1]


def test_a_drain_that_is_cancelled_uncordons_only_what_it_has_cordoned():
    _, (cordon,) = cordons(4, "4")
    assert (cordon.cordoned, cordon.uncordoned, cordon.drained) == ((), (4,), ())
    assert not cordons(4)[1]
    down = [*nodes(3), node(4, is_registered=False)]
    assert not cordons(4, "4", brokers=down)[1]


def test_a_broker_that_is_gone_is_forgotten_and_one_that_cannot_be_drained_is_not_cordoned():
    _, (cordon,) = cordons(3, "4", brokers=nodes(3))
    assert (cordon.cordoned, cordon.uncordoned, cordon.drained) == ((), (), ())
    assert not cordons(3, "4", brokers=nodes(3), departed=(4,))[1]
    assert not cordons(3, partitions={("t", 0): partition(1, 2, 3, 4)})[1]


def test_a_vote_that_was_lost_with_a_disk_is_waited_for_from_its_return_on():
    # Its former disk was heard of a moment ago, and so does not count as gone yet.
    back = replica(3, directory=33)
    waits = planned(3, nodes(3), quorum([1, 2, 3], [back]))
    assert not waits.actions
    assert [wait.reason for wait in waits.waiting] == [Reason.WAITING_FOR_VOTERS]
    assert "broker 3 came back with another disk" in waits.waiting[0].message


def test_the_former_disk_of_a_broker_that_votes_again_is_not_waited_for():
    # The leader lists a silent observer for five minutes, as Kafka does.
    former = replica(3, directory=30, behind_ms=BEHIND)
    assert planned(3, nodes(3), quorum([1, 2, replica(3, 31)], [former])).is_empty
    # One that never had all of the log is on its way, however silent it is.
    new = replica(3, directory=33, behind_ms=None)
    assert planned(3, nodes(3), quorum([1, 2, 3], [new])).waiting
