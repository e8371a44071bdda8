import uuid
from dataclasses import replace

import pytest

from headrace_operator.observe import full_sentence
from headrace_operator.plan import (
    AlterClusterConfig,
    AlterTopicConfig,
    CordonBrokers,
    CreatePartitions,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    Desired,
    MoveReplicas,
    Observed,
    ObservedApplication,
    ObservedCluster,
    ObservedGroup,
    ObservedMember,
    ObservedPartition,
    ObservedQuorum,
    ObservedReplica,
    ObservedTopic,
    ReconfigureBroker,
    ResetOffsets,
    StartApplication,
    StartBroker,
    StopApplication,
    StopBroker,
    UnregisterBroker,
    fingerprint,
    plan,
)
from headrace_operator.plan.cordons import DRAINED_BROKERS
from headrace_operator.plan.drain import plan_drain
from headrace_operator.plan.moves import next_moves
from headrace_operator.plan.report import report
from headrace_operator.plan.topics import config_difference
from headrace_operator.resources import Reason
from support.operator_resources import (
    CONFIG,
    application,
    broker,
    cluster,
    desired,
    existing,
    group,
    observed,
    topic,
)


def joined(node_id, pool="a", **rest):
    return broker(node_id, pool, roles=("broker",), **rest)


def reasons(planned):
    return [problem.reason for problem in planned.problems]


def test_nothing_running_starts_brokers_and_lets_the_rest_wait():
    wanted = desired(topic(), cluster=cluster([{"name": "a", "replicas": 2}]))
    planned = plan(Observed(), wanted)
    assert [(action.node_id, action.pool) for action in planned.actions] == [(1, "a"), (2, "a")]
    assert [wait.reason for wait in planned.waiting] == [Reason.WAITING_FOR_CLUSTER]


def test_converged_input_plans_nothing():
    job = application()
    wanted = desired(
        topic(partitions=3, config={"retention.ms": 5, "preallocate": "False"}),
        groups=(group(topics=["t"]),),
        applications=(job,),
    )
    seen = observed(
        topics={"t": existing(3, retention_ms="5", preallocate="false"), "other": existing()},
        groups={"g": ObservedGroup(state="Stable", offsets={("t", 0): 1})},
        applications={job.key: ObservedApplication(is_running=True, fingerprint=fingerprint(job))},
    )
    planned = plan(seen, wanted)
    assert planned.is_empty
    assert not planned.problems
    assert planned.describe() == "nothing to do"


def test_performing_a_plan_leaves_nothing_to_plan():
    wanted = desired(topic(partitions=2, config={"retention.ms": 7}), topic("u"))
    created = plan(observed(), wanted).actions
    assert all(isinstance(action, CreateTopic) for action in created)
    topics = {
        action.topic: existing(action.partitions, 1).__class__(
            partitions=action.partitions, replicas=1, config=action.config
        )
        for action in created
    }
    assert plan(observed(topics=topics), wanted).is_empty


def test_a_missing_topic_is_created_with_the_default_number_of_replicas():
    (action,) = plan(observed(), desired(topic(partitions=3, config={"a": 1}))).actions
    assert action == CreateTopic(
        resource=("Topic", "default", "t"), topic="t", partitions=3, replicas=-1, config={"a": "1"}
    )
    assert action.describe() == "+ topic t: 3 partitions, replicas default a=1"


def test_partitions_are_added_and_never_taken_away():
    grown = plan(observed(topics={"t": existing(2)}), desired(topic(partitions=5)))
    assert grown.actions == (
        CreatePartitions(resource=("Topic", "default", "t"), topic="t", partitions=5, current=2),
    )
    shrunk = plan(observed(topics={"t": existing(5)}), desired(topic(partitions=2)))
    assert not shrunk.actions
    assert reasons(shrunk) == [Reason.PARTITIONS_CANNOT_SHRINK]
    assert "write partitions: 5" in shrunk.problems[0].message


def test_settings_are_set_and_deleted_and_unmanaged_ones_are_left():
    seen = observed(topics={"t": existing(retention_ms="1", flush_ms="2", segment_ms="3")})
    wanted = topic(config={"retention.ms": 9}, unmanagedConfig=["segment.ms"])
    (action,) = plan(seen, desired(wanted)).actions
    assert isinstance(action, AlterTopicConfig)
    assert (dict(action.set), action.delete) == ({"retention.ms": "9"}, ("flush.ms",))
    assert action.describe() == "~ topic t: retention.ms 1 -> 9; flush.ms 2 -> default"


def test_drift_is_reverted_reported_or_ignored():
    seen = observed(topics={"t": existing(1, retention_ms="1")})
    assert plan(seen, desired(topic())).actions
    reported = plan(seen, desired(topic(drift="Report")))
    assert not reported.actions
    assert reasons(reported) == [Reason.DRIFT_REPORTED]
    assert not reported.problems[0].is_stalling
    ignored = plan(seen, desired(topic(drift="Ignore")))
    assert ignored.is_empty
    assert not ignored.problems


def test_a_change_of_the_spec_is_applied_whatever_the_drift_policy():
    seen = observed(topics={"t": existing(1)})
    wanted = topic(
        partitions=2,
        drift="Ignore",
        metadata={"generation": 2},
        status={"observedGeneration": 1, "reconciledGeneration": 1},
    )
    assert [type(action) for action in plan(seen, desired(wanted)).actions] == [CreatePartitions]


def test_two_resources_of_one_topic_do_not_fight():
    planned = plan(observed(), desired(topic("t"), topic("other", topicName="t", partitions=9)))
    assert [action.partitions for action in planned.actions] == [1]
    assert reasons(planned) == [Reason.DUPLICATE_TOPIC]
    assert "Topic default/t" in planned.problems[0].message


def test_more_replicas_than_brokers_wait_for_brokers_that_come_and_else_are_a_problem():
    coming = cluster([{"name": "a", "replicas": 3}])
    waits = plan(observed(), desired(topic(replicas=3), cluster=coming))
    assert Reason.WAITING_FOR_BROKERS in [wait.reason for wait in waits.waiting]
    assert reasons(plan(observed(), desired(topic(replicas=3)))) == [Reason.TOO_FEW_BROKERS]


def test_a_topic_of_another_cluster_or_a_foreign_namespace_is_refused():
    foreign = topic(clusterRef={"name": "nowhere"})
    assert reasons(plan(observed(), desired(foreign))) == [Reason.CLUSTER_NOT_FOUND]
    there = topic(clusterRef={"name": "c", "namespace": "default"}, metadata={"namespace": "x"})
    assert reasons(plan(observed(), desired(there))) == [Reason.NAMESPACE_NOT_ALLOWED]
    everyone = cluster(allowedTopics={"namespaces": {"from": "All"}})
    assert plan(observed(), desired(there, cluster=everyone)).actions


def test_one_bad_resource_keeps_no_other_from_its_actions():
    wanted = desired(topic("bad", clusterRef={"name": "nowhere"}), topic("good"))
    planned = plan(observed(), wanted)
    assert [action.topic for action in planned.actions] == ["good"]


def test_deletion_retains_deletes_or_is_refused():
    seen = observed(topics={"t": existing()})
    for policy, kinds, problems in (
        ("Retain", [], []),
        ("Delete", [DeleteTopic], []),
        ("Protect", [], [Reason.DELETION_PROTECTED]),
    ):
        wanted = topic(deletionPolicy=policy)
        planned = plan(seen, desired(wanted, deleted=frozenset({wanted.key})))
        assert [type(action) for action in planned.actions] == kinds
        assert reasons(planned) == problems


def test_without_its_cluster_a_deletion_always_succeeds():
    wanted = topic(deletionPolicy="Protect")
    planned = plan(
        Observed(), Desired(cluster=None, topics=(wanted,), deleted=frozenset({wanted.key}))
    )
    assert planned.is_empty
    assert not planned.problems


def test_topics_that_no_manifest_names_are_left_alone():
    assert plan(observed(topics={"other": existing(7)}), desired()).is_empty


def test_a_pool_takes_the_lowest_free_ids_and_gives_back_the_highest():
    two = cluster([{"name": "a", "replicas": 2}, {"name": "b"}])
    seen = observed(broker(1), broker(3, "b"))
    assert [action.node_id for action in plan(seen, desired(cluster=two)).actions] == [2]
    seen = observed(broker(1), joined(2), joined(3, "gone"))
    actions = plan(seen, desired()).actions
    assert [(type(action), action.node_id) for action in actions] == [
        (StopBroker, 2),
        (StopBroker, 3),
    ]


def roles_of(pools, *brokers):
    planned = plan(observed(*brokers) if brokers else Observed(), desired(cluster=cluster(pools)))
    starts = [action for action in planned.actions if isinstance(action, StartBroker)]
    return {action.node_id: action.roles for action in starts}


def test_up_to_three_brokers_vote_and_always_an_odd_number():
    for count, voters in ((1, 1), (2, 1), (3, 3), (4, 3), (5, 3)):
        roles = roles_of([{"name": "a", "replicas": count}])
        assert len(roles) == count
        voting = [node_id for node_id, each in roles.items() if "controller" in each]
        assert voting == list(range(1, voters + 1))
        assert all("broker" in each for each in roles.values())


def test_where_a_pool_is_only_controllers_nobody_else_votes():
    pools = [
        {"name": "b", "replicas": 2},
        {"name": "a", "replicas": 3, "roles": ["controller"]},
    ]
    roles = roles_of(pools)
    assert [roles[node_id] for node_id in (3, 4, 5)] == [("controller",)] * 3
    assert [roles[node_id] for node_id in (1, 2)] == [("broker",)] * 2


def test_brokers_that_join_become_controllers_while_voters_are_missing_and_old_ones_keep_roles():
    pools = [{"name": "a", "replicas": 5}]
    stopped = broker(2, roles=("broker",), is_running=False)
    assert roles_of(pools, broker(1), stopped) == {
        2: ("broker",),
        3: ("broker", "controller"),
        4: ("broker", "controller"),
        5: ("broker",),
    }


def test_a_broker_that_stopped_is_started_with_its_own_id():
    actions = plan(observed(broker(5, is_running=False)), desired()).actions
    assert [(type(action), action.node_id) for action in actions] == [(StartBroker, 5)]


def partition(*replicas, leader=None, in_sync=None):
    return ObservedPartition(
        replicas=replicas,
        in_sync=replicas if in_sync is None else in_sync,
        leader=replicas[0] if leader is None else leader,
    )


def drained(brokers, partitions, wanted, **rest):
    counted = [
        replace(each, replicas=sum(each.node_id in one.replicas for one in partitions.values()))
        for each in brokers
    ]
    seen = ObservedCluster(brokers=tuple(counted), partitions=partitions, **rest)
    pools = [{"name": "a", "replicas": wanted}]
    return plan(Observed(cluster=seen), desired(cluster=cluster(pools)))


def test_a_broker_is_drained_before_it_is_stopped_and_then_forgotten():
    brokers = [broker(1), joined(2), joined(3), joined(4)]
    partitions = {
        ("t", 0): partition(4, 1),
        ("t", 1): partition(2, 4),
        ("t", 2): partition(1, 2),
    }
    planned = drained(brokers, partitions, 3)
    (move,) = planned.actions
    assert move.moves == {("t", 0): (3, 1), ("t", 1): (2, 3)}
    assert [wait.reason for wait in planned.waiting] == [Reason.WAITING_FOR_DRAIN]
    # While it moves, a partition has old and new replicas: more than brokers would be left.
    both = {key: partition(*replicas, 4, 2) for key, replicas in move.moves.items()}
    moving = drained(brokers, partitions | both, 3, reassigning=frozenset(both))
    assert not moving.problems
    late = drained(brokers, {**partitions, ("t", 0): partition(3, 1, 4)}, 3)
    assert not late.problems
    assert list(late.actions[0].moves) == [("t", 1)]
    assert not moving.actions
    assert [wait.reason for wait in moving.waiting] == [Reason.WAITING_FOR_DRAIN]
    moved = {key: partition(*replicas) for key, replicas in move.moves.items()}
    empty = drained(brokers, partitions | moved, 3)
    assert [(type(each), each.node_id) for each in empty.actions] == [(StopBroker, 4)]
    gone = drained(brokers[:3], partitions | moved, 3, departed=(4,))
    assert [(type(each), each.node_id) for each in gone.actions] == [(UnregisterBroker, 4)]


def test_a_broker_that_leaves_empty_gets_nothing_new_before_it_stops():
    """Else a topic that is created at this moment has replicas on a broker that is gone."""
    brokers = [broker(1), joined(2)]
    (cordon,) = drained(brokers, {}, 1, live_config={}).actions
    assert (type(cordon), cordon.cordoned) == (CordonBrokers, (2,))
    told = {DRAINED_BROKERS: "2"}
    (stop,) = drained(brokers, {}, 1, live_config=told).actions
    assert (type(stop), stop.node_id) == (StopBroker, 2)
    late = drained(brokers, {("new", 0): partition(2)}, 1, live_config=told)
    assert [type(each) for each in late.actions] == [MoveReplicas]
    # One that is down gets nothing, and one that is no broker never has anything.
    kinds = ({"is_registered": False, "roles": ("broker",)}, {"roles": ("controller",)})
    told = {"live_config": {}, "quorum": ObservedQuorum(leader_id=1, voters=(voter(1),))}
    for rest in kinds:
        actions = drained([broker(1), broker(2, **rest)], {}, 1, **told).actions
        assert StopBroker in map(type, actions)
    # Who is kept for another reason takes nothing that would have to move again.
    pools = [{"name": "a", "replicas": 1}]
    seen = ObservedCluster(
        brokers=tuple(brokers),
        live_config={},
        quorum=ObservedQuorum(leader_id=2, voters=(voter(1), voter(2))),
    )
    planned = plan(Observed(cluster=seen), desired(cluster=cluster(pools)))
    assert CordonBrokers in map(type, planned.actions)


def voter(node_id):
    return ObservedReplica(node_id=node_id, directory_id=uuid.UUID(int=node_id), behind_ms=0)


def test_a_drain_that_would_leave_too_few_brokers_is_refused_with_the_reason():
    brokers = [broker(1), joined(2), joined(3)]
    planned = drained(brokers, {("t", 0): partition(1, 2, 3)}, 2)
    assert not planned.actions
    (problem,) = planned.problems
    assert problem.reason is Reason.DRAIN_REFUSED
    assert "t-0 has 3 replicas and 2 brokers would be left" in problem.message


def test_a_partition_without_a_leader_cannot_be_moved():
    brokers = [broker(1), joined(2)]
    planned = drained(brokers, {("t", 0): partition(2, leader=-1, in_sync=())}, 1)
    assert not planned.actions
    assert "t-0 has no leader to copy from" in planned.problems[0].message


def test_a_broker_to_be_removed_is_started_first_since_it_may_have_records():
    (action,) = drained([broker(1), joined(2, is_running=False)], {}, 1).actions
    assert (type(action), action.node_id, action.roles) == (StartBroker, 2, ("broker",))


def test_only_so_many_partitions_move_at_once_and_no_faster_than_allowed():
    brokers = [broker(1), joined(2)]
    partitions = {("t", index): partition(2) for index in range(20)}
    (move,) = drained(brokers, partitions, 1).actions
    assert (len(move.moves), move.throttle) == (10, 50 << 20)
    busy = frozenset(list(move.moves)[:4])
    slow = {"headrace.moves.throttle": str(50 << 20)}
    planned = drained(brokers, partitions, 1, reassigning=busy, live_config=slow)
    (more,) = (each for each in planned.actions if isinstance(each, MoveReplicas))
    assert (len(more.moves), more.throttle) == (6, None)
    assert not drained(brokers, partitions, 1, reassigning=frozenset(move.moves)).actions


def test_the_throttle_is_taken_back_when_nothing_moves_any_more():
    slow = {"headrace.moves.throttle": str(50 << 20)}

    def at_rest(**rest):
        return rolling([broker(1)], {("t", 0): partition(1)}, CONFIG, live_config=slow, **rest)

    (action,) = at_rest().actions
    assert (action.set, action.delete) == ({}, ("headrace.moves.throttle",))
    assert not at_rest(reassigning=frozenset({("t", 0)})).actions


def test_moves_are_as_many_and_as_fast_as_the_cluster_says():
    moves = {("t", index): (1, 2) for index in range(9)}
    wanted = cluster(moves={"throttle": "2k", "concurrent": 3})
    (move,) = next_moves(wanted, ObservedCluster(), moves, ())
    assert (len(move.moves), move.throttle) == (3, 2000)
    fast = cluster(moves={"throttle": 0})
    (move,) = next_moves(fast, ObservedCluster(live_config={}), moves, ())
    assert move.throttle is None
    slow = ObservedCluster(live_config={"headrace.moves.throttle": "2000"})
    (move,) = next_moves(fast, slow, moves, ())
    assert move.throttle == 0


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_what_a_persons_reassignment_throttles_is_no_drift(side):
    setting = f"{side}.replication.throttled.replicas"
    found = ObservedTopic(partitions=1, replicas=1, config={setting: "0:1", "flush.ms": "5"})
    change = config_difference(topic(), found)
    assert change.delete == ("flush.ms",)
    # Who writes it into a Topic has it.
    change = config_difference(topic(config={setting: "*"}), found)
    assert change.set == {setting: "*"}


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_throttle_that_the_spec_has_set_goes_with_it_and_nobody_elses_does(side):
    setting = f"{side}.replication.throttled.replicas"

    def found(value):
        return ObservedTopic(partitions=1, replicas=1, config={setting: value})

    def told(resource, existing):
        seen = observed(topics={"t": existing})
        wanted = desired(resource)
        return report(seen, wanted, plan(seen, wanted))[resource.key].get("throttles")

    with_it = topic(config={setting: "0:1"})
    assert told(with_it, found("0:1")) == {setting: "0:1"}
    without = topic(status={"throttles": {setting: "0:1"}})
    assert config_difference(without, found("0:1")).delete == (setting,)
    assert told(without, ObservedTopic(partitions=1, replicas=1)) is None
    # Somebody moves replicas meanwhile, and has set it anew.
    assert config_difference(without, found("0:2,1:3")) is None
    assert told(without, found("0:2,1:3")) is None
    assert told(topic(), found("0:1")) is None
    unmanaged = topic(unmanagedConfig=[setting], status={"throttles": {setting: "0:1"}})
    assert config_difference(unmanaged, found("0:1")) is None


def test_replicas_go_to_racks_that_their_partition_is_not_in():
    partitions = {("t", 0): partition(1, 9)}
    drain = plan_drain(partitions, {9}, {1: "x", 2: "x", 3: "y"}, kept={})
    assert drain.moves == {("t", 0): (1, 3)}


def test_new_settings_go_to_one_broker_at_a_time_controllers_last():
    pools = [
        {"name": "a", "roles": ["controller"]},
        {"name": "b", "roles": ["broker"], "replicas": 2},
    ]
    seen = observed(
        broker(1, "a", roles=("controller",)),
        broker(2, "b", roles=("broker",)),
        broker(3, "b", roles=("broker",)),
    )
    wanted = desired(cluster=cluster(pools, config={**CONFIG, "log.retention.ms": 5}))
    planned = plan(seen, wanted)
    (action,) = planned.actions
    assert isinstance(action, ReconfigureBroker)
    assert (action.node_id, action.changes) == (2, ("log.retention.ms: default -> 5",))
    assert "2 brokers get new settings after broker 2" in planned.waiting[0].message


def test_the_active_controller_gets_new_settings_after_the_others():
    def first(outdated, active):
        brokers = [
            broker(each, outdated=("image: a -> b",) if each in outdated else ())
            for each in (1, 2, 3)
        ]
        voters = tuple(
            ObservedReplica(node_id=each, directory_id=uuid.UUID(int=each)) for each in (1, 2, 3)
        )
        quorum = ObservedQuorum(leader_id=active, voters=voters) if active else None
        return rolling(brokers, {}, CONFIG, quorum=quorum).actions[0].node_id

    assert [first((1, 2, 3), active) for active in (1, 2, 3, None)] == [2, 1, 1, 1]
    assert first((1, 3), 1) == 3
    assert first((1,), 1) == 1


def rolling(brokers, partitions, config=None, topics=None, **rest):
    seen = ObservedCluster(brokers=tuple(brokers), partitions=partitions, **rest)
    wanted = cluster([{"name": "a", "replicas": len(brokers)}], config=config or {"num.io": 5})
    return plan(Observed(cluster=seen, topics=topics or {}), desired(cluster=wanted))


def test_a_restart_waits_for_every_partition_and_says_for_which_and_since_when():
    brokers = [broker(1), joined(2), joined(3)]
    partitions = {("t", 1): partition(1, 2, 3, in_sync=(1, 2)), ("alone", 0): partition(1)}
    planned = rolling(brokers, partitions, out_of_sync_since={("t", 1): "2026-01-01T00:00:00Z"})
    assert not planned.actions
    message = planned.waiting[0].message
    assert "t-1 is not in sync: 1,2 of 1,2,3 since 2026-01-01T00:00:00Z" in message
    assert "alone" not in message


def test_a_restart_never_takes_a_topic_below_its_minimum_in_sync():
    brokers = [broker(1), joined(2), joined(3)]
    strict = {"t": existing(1, 2, min_insync_replicas="2")}
    planned = rolling(brokers, {("t", 0): partition(2, 3)}, topics=strict)
    assert not planned.actions
    assert "t has 2 replicas and min.insync.replicas 2" in planned.waiting[0].message
    assert rolling(brokers, {("t", 0): partition(2, 3)}, topics={"t": existing(1, 2)}).actions


def test_no_broker_is_restarted_while_another_is_away():
    brokers = [broker(1), joined(2, is_registered=False), joined(3)]
    planned = rolling(brokers, {})
    assert not planned.actions
    assert "broker 2 is not registered" in planned.waiting[0].message


def test_no_broker_is_restarted_while_another_is_not_ready_and_the_cluster_is_not_either():
    brokers = [broker(1), joined(2, is_ready=False), joined(3)]
    planned = rolling(brokers, {})
    assert not planned.actions
    assert "broker 2 is not ready" in planned.waiting[0].message


def test_a_broker_that_cannot_start_as_it_should_is_the_next_whatever_else_is_wrong():
    brokers = [broker(1), joined(2), joined(3, is_registered=False, failing="CrashLoopBackOff")]
    (action,) = rolling(brokers, {("t", 0): partition(1, 3, in_sync=(1,))}).actions
    assert action.node_id == 3


def test_a_broker_whose_machine_is_in_another_rack_than_it_says_is_restarted():
    brokers = [broker(1, rack="a", placed_rack="b"), broker(2, rack="b", placed_rack="b")]
    (action,) = rolling(brokers, {}, CONFIG).actions
    assert (action.node_id, action.changes) == (1, ("rack: a -> b",))
    assert not rolling([broker(1, rack="a")], {}, CONFIG).actions


def test_what_else_differs_is_a_reason_to_restart():
    brokers = [broker(1, outdated=("image: a -> b",))]
    (action,) = rolling(brokers, {}, config=CONFIG).actions
    assert action.changes == ("image: a -> b",)


def test_settings_that_brokers_take_while_they_run_restart_nobody():
    brokers = [broker(1, config={"num.io": "5"})]
    config = {"num.io": 5, "log.retention.ms": 9}
    live = {"log.retention.ms": "1", "log.roll.ms": "2", "leader.replication.throttled.rate": "3"}
    (action,) = rolling(brokers, {}, config=config, has_live_config=True, live_config=live).actions
    assert isinstance(action, AlterClusterConfig)
    assert (dict(action.set), action.delete) == ({"log.retention.ms": "9"}, ("log.roll.ms",))
    kept = {"log.retention.ms": "9", "leader.replication.throttled.rate": "3"}
    assert not rolling(brokers, {}, config=config, has_live_config=True, live_config=kept).actions
    assert not rolling(brokers, {}, config=config, has_live_config=True).actions


def test_brokers_that_joined_get_their_share_when_nothing_else_is_to_be_done():
    brokers = [broker(1), joined(2)]
    partitions, balance = {("t", 0): partition(1)}, {("t", 0): (2,)}
    (move,) = rolling(brokers, partitions, config=CONFIG, balance=balance).actions
    assert (dict(move.moves), move.leaving) == (balance, ())
    busy = rolling(
        brokers, partitions, config=CONFIG, balance=balance, reassigning=frozenset(balance)
    )
    assert not busy.actions
    assert "on their way to new brokers" in busy.waiting[0].message


def test_what_only_waits_for_its_leader_to_be_elected_is_not_moved_again():
    partitions, balance = {("t", 0): partition(2, 1)}, {("t", 0): (2, 1)}
    brokers = [broker(1), joined(2)]
    assert not rolling(brokers, partitions, config=CONFIG, balance=balance).actions


def test_the_pods_of_a_set_leave_from_the_highest_ordinal():
    brokers = [broker(1, ordinal=0), joined(4, ordinal=1), joined(3, ordinal=2)]
    (stop,) = drained(brokers, {}, 2).actions
    assert (type(stop), stop.node_id) == (StopBroker, 3)


def test_nothing_is_served_in_the_clear_that_should_be_protected():
    wanted = cluster(listeners=[{"name": "plain", "tls": {"enabled": True}}])
    planned = plan(Observed(), desired(cluster=wanted))
    assert not planned.actions
    assert reasons(planned) == [Reason.NOT_SUPPORTED]


def test_plan_mode_shows_what_would_happen_until_its_hash_is_approved():
    asking = plan(Observed(), desired(cluster=cluster(updatePolicy="Plan")))
    assert not asking.actions
    assert [type(action) for action in asking.proposed] == [StartBroker]
    approved = cluster(updatePolicy="Plan", approvedPlan=asking.hash)
    assert plan(Observed(), desired(cluster=approved)).actions == asking.proposed
    stale = cluster(updatePolicy="Plan", approvedPlan="0" * 16)
    assert not plan(Observed(), desired(cluster=stale)).actions


def test_an_approved_plan_holds_until_its_last_step_and_for_no_other_spec():
    wanted = {"config": {"num.io": 5}, "updatePolicy": "Plan"}
    pools = [{"name": "a", "replicas": 2}]
    old = observed(broker(1), joined(2))
    asking = plan(old, desired(cluster=cluster(pools, **wanted)))
    assert [action.node_id for action in asking.proposed] == [2, 1]
    approved = desired(cluster=cluster(pools, approvedPlan=asking.hash, **wanted))
    assert [action.node_id for action in plan(old, approved).actions] == [2]
    half = observed(broker(1), joined(2, config={"num.io": "5"}))
    assert [action.node_id for action in plan(half, approved).actions] == [1]
    other = cluster(pools, **{**wanted, "config": {"num.io": 6}}, approvedPlan=asking.hash)
    assert not plan(half, desired(cluster=other)).actions


def test_a_paused_cluster_is_left_alone():
    planned = plan(Observed(), desired(topic(), cluster=cluster(paused=True)))
    assert not planned.actions
    assert planned.waiting[0].reason == Reason.PAUSED


def test_a_deleted_cluster_stops_its_applications_and_then_its_brokers():
    wanted = cluster()
    job = application()
    seen = observed(applications={job.key: ObservedApplication(is_running=True)})
    everything = desired(
        topic(), cluster=wanted, applications=(job,), deleted=frozenset({wanted.key})
    )
    kinds = [type(action) for action in plan(seen, everything).actions]
    assert kinds == [StopApplication, StopBroker]
    protected = cluster(deletionPolicy="Protect")
    planned = plan(seen, desired(cluster=protected, deleted=frozenset({protected.key})))
    assert reasons(planned) == [Reason.DELETION_PROTECTED]


def test_an_application_starts_when_its_topics_exist_and_again_when_its_spec_changes():
    job = application(arguments=["--window", "10s"])
    wanted = desired(topic(), applications=(job,))
    before = plan(observed(), wanted)
    assert [type(action) for action in before.actions] == [CreateTopic]
    assert [wait.reason for wait in before.waiting] == [Reason.WAITING_FOR_TOPICS]
    there = {"t": existing()}
    (start,) = plan(observed(topics=there), wanted).actions
    assert start == StartApplication(
        resource=job.key, application="job", fingerprint=fingerprint(job)
    )
    running = {job.key: ObservedApplication(is_running=True, fingerprint="another")}
    (restart,) = plan(observed(topics=there, applications=running), wanted).actions
    assert restart.is_restart
    suspended = desired(topic(), applications=(application(suspend=True),))
    (stop,) = plan(observed(topics=there, applications=running), suspended).actions
    assert isinstance(stop, StopApplication)


OFFSETS = {
    "offsets": {("t", 0): 5, ("t", 1): 8},
    "start_offsets": {("t", 0): 2, ("t", 1): 0},
    "end_offsets": {("t", 0): 10, ("t", 1): 10},
}


def reset_plan(to, state="Empty", seen=None, **reset):
    wanted = group(topics=["t"], reset={"requestId": "r1", "to": to, **reset})
    described = ObservedGroup(state=state, **{**OFFSETS, **(seen or {})})
    return plan(
        observed(topics={"t": existing(2)}, groups={"g": described}),
        desired(topic(partitions=2), groups=(wanted,)),
    )


def test_a_reset_moves_to_the_beginning_the_end_by_records_or_to_given_offsets():
    for to, expected in (
        ({"position": "Earliest"}, {("t", 0): 2, ("t", 1): 0}),
        ({"position": "Latest"}, {("t", 0): 10, ("t", 1): 10}),
        ({"shiftBy": -4}, {("t", 0): 2, ("t", 1): 4}),
        ({"shiftBy": 4}, {("t", 0): 9, ("t", 1): 10}),
        ({"offsets": [{"topic": "t", "partition": 1, "offset": 3}]}, {("t", 1): 3}),
    ):
        (action,) = reset_plan(to).actions
        assert isinstance(action, ResetOffsets)
        assert action.offsets == expected
        assert action.previous == {key: OFFSETS["offsets"][key] for key in expected}


def share_plan(seen: ObservedGroup, **spec):
    wanted = group(topics=["t"], **spec)
    everything = desired(topic(partitions=2), groups=(wanted,), applications=(application(),))
    found = observed(topics={"t": existing(2)}, groups={"g": seen})
    return wanted, plan(found, everything)


def test_a_reset_of_a_share_group_moves_its_start():
    seen = ObservedGroup(state="Empty", type="share", **OFFSETS)
    ask = {"requestId": "r", "to": {"position": "Earliest"}}
    for kind in ({}, {"type": "Share"}):
        _, planned = share_plan(seen, reset=ask, **kind)
        (reset,) = [each for each in planned.actions if isinstance(each, ResetOffsets)]
        assert reset.is_share
        assert reset.offsets == {("t", 0): 2, ("t", 1): 0}


def test_a_reset_makes_a_share_group_that_is_not_there_yet():
    ask = {"requestId": "r", "to": {"position": "Earliest"}}
    for state in ("", "Dead"):
        seen = ObservedGroup(state=state, start_offsets=OFFSETS["start_offsets"])
        _, planned = share_plan(seen, type="Share", reset=ask)
        (reset,) = [each for each in planned.actions if isinstance(each, ResetOffsets)]
        assert reset.is_share
        assert reset.offsets == OFFSETS["start_offsets"]


def test_a_share_group_that_is_another_kind_is_a_problem_and_is_not_moved():
    ask = {"requestId": "r", "to": {"position": "Earliest"}}
    for kind, there, stalls in (
        ("Share", "classic", True),
        ("Classic", "share", True),
        ("Classic", "consumer", False),
    ):
        seen = ObservedGroup(state="Empty", type=there, **OFFSETS)
        _, planned = share_plan(seen, type=kind, reset=ask)
        (problem,) = planned.problems
        assert (problem.reason, problem.is_stalling) == (Reason.GROUP_TYPE_DIFFERS, stalls)
        assert any(isinstance(each, ResetOffsets) for each in planned.actions) is not stalls
    for kind in ("Share", "Classic"):
        _, planned = share_plan(ObservedGroup(state="Dead"), type=kind)
        assert planned.problems == ()


def test_a_reset_by_time_takes_what_was_looked_up():
    looked_up = {("t", 0): 7, ("t", 1): 9}
    (action,) = reset_plan({"duration": "2h"}, seen={"reset_offsets": looked_up}).actions
    assert action.offsets == looked_up
    assert action.describe() == "~ group g: t-0 5 -> 7; t-1 8 -> 9"


def test_a_reset_that_cannot_be_keeps_its_job_running():
    job = application()
    wanted = group(
        topics=["t"],
        targetRef={"kind": "SparkApplication", "name": "job"},
        reset={
            "requestId": "r",
            "to": {"offsets": [{"topic": "t", "partition": 7, "offset": 1}]},
            "whenActive": "ScaleDown",
        },
    )
    groups = {"g": ObservedGroup(state="Empty", **OFFSETS)}
    seen = observed(topics={"t": existing(2)}, groups=groups)
    everything = desired(topic(partitions=2), groups=(wanted,), applications=(job,))
    planned = plan(seen, everything)
    assert [type(action) for action in planned.actions] == [StartApplication]
    assert reasons(planned) == [Reason.INVALID_RESET]


def test_a_reset_that_cannot_be_is_a_problem():
    for to, text in (
        ({"offsets": [{"topic": "t", "partition": 0, "offset": 1}]}, "offsets 2 to 10, not 1"),
        ({"offsets": [{"topic": "t", "partition": 7, "offset": 1}]}, "no partition t-7"),
        ({"timestamp": "2026-01-01T00:00:00Z"}, "no offset is known"),
    ):
        planned = reset_plan(to)
        assert reasons(planned) == [Reason.INVALID_RESET]
        assert text in planned.problems[0].message


def test_a_reset_waits_until_the_group_is_empty_and_names_its_members():
    member = ObservedMember(member_id="m", client_id="worker", host="10.0.0.1")
    planned = reset_plan({"position": "Earliest"}, "Stable", {"members": (member,)})
    assert not planned.actions
    assert planned.waiting[0].reason == Reason.WAITING_FOR_EMPTY_GROUP
    assert "worker@10.0.0.1" in planned.waiting[0].message


def test_a_dry_run_needs_no_empty_group():
    (action,) = reset_plan({"position": "Earliest"}, "Stable", dryRun=True).actions
    assert action.is_dry_run


def test_a_reset_stops_its_consumer_and_starts_it_afterwards():
    job = application()
    wanted = group(
        topics=["t"],
        targetRef={"kind": "SparkApplication", "name": "job"},
        reset={"requestId": "r", "to": {"position": "Earliest"}, "whenActive": "ScaleDown"},
    )
    everything = desired(topic(partitions=2), groups=(wanted,), applications=(job,))
    running = {job.key: ObservedApplication(is_running=True, fingerprint=fingerprint(job))}

    def planned(state, applications):
        groups = {"g": ObservedGroup(state=state, **OFFSETS)}
        seen = observed(topics={"t": existing(2)}, groups=groups, applications=applications)
        return [type(action) for action in plan(seen, everything).actions]

    assert planned("Stable", running) == [StopApplication]
    assert planned("Stable", {}) == []
    # Not started in the same plan: the brokers may refuse the reset.
    assert planned("Empty", {}) == [ResetOffsets]


def test_a_spark_job_is_active_while_it_runs_although_its_group_is_empty():
    job = application()

    def planned(applications, *, done=None, **reset):
        wanted = group(
            topics=["t"],
            targetRef={"kind": "SparkApplication", "name": "job"},
            reset={"requestId": "r", "to": {"position": "Earliest"}, **reset},
            status={"lastReset": {"requestId": done}} if done else {},
        )
        groups = {"g": ObservedGroup(state="Empty", **OFFSETS)}
        seen = observed(topics={"t": existing(2)}, groups=groups, applications=applications)
        everything = desired(topic(partitions=2), groups=(wanted,), applications=(job,))
        return plan(seen, everything)

    def kinds(planned):
        return [type(action) for action in planned.actions]

    running = {job.key: ObservedApplication(is_running=True, fingerprint=fingerprint(job))}
    waits = planned(running)
    assert kinds(waits) == []
    assert "SparkApplication job has stopped" in waits.waiting[0].message
    assert kinds(planned(running, whenActive="ScaleDown")) == [StopApplication]
    assert kinds(planned(running, whenActive="ScaleDown", dryRun=True)) == [ResetOffsets]
    assert kinds(planned({}, whenActive="ScaleDown")) == [ResetOffsets]
    assert kinds(planned({})) == [ResetOffsets]
    assert kinds(planned({}, done="r")) == [StartApplication]


def test_a_reset_is_done_once_for_each_request_id():
    def planned(last, **reset):
        wanted = group(
            topics=["t"],
            reset={"requestId": "r1", "to": {"position": "Earliest"}, **reset},
            status={"lastReset": last},
        )
        groups = {"g": ObservedGroup(state="Empty", **OFFSETS)}
        seen = observed(topics={"t": existing(2)}, groups=groups)
        return plan(seen, desired(topic(partitions=2), groups=(wanted,))).actions

    assert not planned({"requestId": "r1"})
    assert planned({"requestId": "r0"})
    assert planned({"requestId": "r1", "dryRun": True})
    assert not planned({"requestId": "r1", "dryRun": True}, dryRun=True)


def test_a_group_is_deleted_only_when_empty_and_only_when_asked():
    for policy, state, kinds in (
        ("Retain", "Empty", []),
        ("Delete", "Empty", [DeleteGroup]),
        ("Delete", "Stable", []),
        ("Protect", "Empty", []),
    ):
        wanted = group(deletionPolicy=policy)
        planned = plan(
            observed(groups={"g": ObservedGroup(state=state)}),
            desired(groups=(wanted,), deleted=frozenset({wanted.key})),
        )
        assert [type(action) for action in planned.actions] == kinds


def test_lag_counts_only_what_was_committed():
    seen = ObservedGroup(
        state="Stable", offsets={("t", 0): 4, ("t", 1): 12}, end_offsets=OFFSETS["end_offsets"]
    )
    assert seen.lag == {("t", 0): 6, ("t", 1): 0}
    assert seen.lag_records == 6


def test_an_unreachable_cluster_says_why():
    unreachable = Observed(
        cluster=ObservedCluster(brokers=(broker(),), is_reachable=False, error="refused")
    )
    planned = plan(unreachable, desired(topic()))
    assert not planned.actions
    assert "refused" in planned.waiting[0].message


def test_a_drain_says_that_the_broker_it_waits_for_is_down():
    full = joined(3, is_registered=False, failing="CrashLoopBackOff: No space left on device")
    waits = drained([broker(1), joined(2), full], {("t", 0): partition(1, 3)}, 2).waiting
    assert "broker 3 is down: CrashLoopBackOff: No space left on device" in waits[0].message


def test_a_volume_that_is_nearly_full_is_named():
    seen = ObservedCluster(brokers=(broker(1),), full=("broker 1: /d is nearly full",))
    planned = plan(Observed(cluster=seen), desired(cluster=cluster()))
    (problem,) = planned.problems
    assert (problem.reason, problem.is_stalling) == (Reason.VOLUME_FULL, False)
    directory = {"error_code": 0, "log_dir": "/d", "total_bytes": 1 << 30, "usable_bytes": 1 << 20}
    sentence = "broker 1: /d is nearly full: 0 % of 1024 MiB are left"
    # A condition that changed with each record would be written at each look.
    for usable in (1 << 20, 1 << 19, 0):
        assert full_sentence(1, directory | {"usable_bytes": usable}) == sentence
    assert full_sentence(1, {**directory, "usable_bytes": 1 << 29}) == ""
    assert "has failed" in full_sentence(1, {**directory, "error_code": 56})
