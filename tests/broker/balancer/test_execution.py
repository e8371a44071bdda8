"""A plan is stored as settings, and any controller carries it out from the image alone."""

import pytest

from headrace_broker.balancer.execution import MoveState, decide_advance_plan, progress_of
from headrace_broker.balancer.observation import Measurements, observe_cluster
from headrace_broker.balancer.plans import plan_drain, plan_rebalance
from headrace_broker.metadata.brokers.liveness import decide_fence_broker
from headrace_broker.metadata.configs.alter_configs import (
    ConfigOperation,
    decide_incremental_alter_configs,
)
from headrace_broker.metadata.configs.balance_settings import (
    balance_throttle,
    plan_settings,
    read_moves,
    stored_plan,
)
from headrace_broker.metadata.elections import decide_elect_leaders
from headrace_broker.metadata.partition_change import is_reassigning
from headrace_broker.metadata.reassignments import decide_complete_reassignments
from headrace_broker.metadata.records import PartitionChangeRecord, RemoveTopicRecord
from headrace_broker.metadata.settings.broker_settings import BrokerSettings
from headrace_broker.metadata.settings.resources import ConfigResourceType, broker_resource
from headrace_broker.metadata.snapshot import snapshot_records
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.elect_leaders import ElectLeadersRequest
from headrace_broker.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace_broker.protocol.types import NodeId
from support.metadata import POLICY, creatable, create, image_of, image_with_brokers, replayed

SETTINGS = BrokerSettings(node_id=NodeId(1))


def _set(image, resource="", **entries):
    configs = [
        AlterableConfig(
            name=name.replace("_", "."),
            config_operation=ConfigOperation.DELETE if value is None else ConfigOperation.SET,
            value=value,
        )
        for name, value in entries.items()
    ]
    asked = AlterConfigsResource(
        resource_type=ConfigResourceType.BROKER, resource_name=resource, configs=configs
    )
    request = IncrementalAlterConfigsRequest(resources=[asked])
    decision = decide_incremental_alter_configs(image, request, SETTINGS)
    return replayed(image, list(decision.records)), decision.response.responses[0]


def _unbalanced(partitions=12, brokers=3):
    """Partitions on the first two of the brokers."""
    image, _ = create(
        image_with_brokers(brokers),
        creatable("t", assignments=[[1 + i % 2, 2 - i % 2] for i in range(partitions)]),
    )
    return image


def _plan(image, drain=None):
    cluster = observe_cluster(image, Measurements(size_bytes={("t", 0): 1000}))
    return plan_rebalance(cluster) if drain is None else plan_drain(cluster, drain)


def _approve(image, plan=None, **more):
    settings = {**plan_settings((plan or _plan(image)).steps), "headrace.balance.state": "running"}
    return _set(image, **settings, **more)


def _advance(image):
    decision = decide_advance_plan(image, POLICY)
    return replayed(image, list(decision.records))


def _catch_up(image):
    """Every new replica gets into the ISR, and reassignments end."""
    records = [
        PartitionChangeRecord(
            topic_id=topic.topic_id, partition_id=index, isr=list(partition.replicas)
        )
        for topic in image.topics.values()
        for index, partition in topic.partitions.items()
        if is_reassigning(partition)
    ]
    image = replayed(image, records)
    return replayed(image, list(decide_complete_reassignments(image, POLICY).records))


def _finish(image):
    for _ in range(100):
        if stored_plan(image) is None:
            return image
        image = _catch_up(_advance(image))
    raise AssertionError("the plan never ends")


def _last(image):
    return image.config(broker_resource(None))["headrace.balance.last"]


def _moving(image):
    return sum(is_reassigning(each) for each in image.topics["t"].partitions.values())


def test_an_approved_plan_is_carried_out_some_moves_at_a_time_and_noted():
    plan = _plan(_unbalanced())
    image, answer = _approve(_unbalanced(), plan, headrace_balance_concurrent_moves="2")
    assert answer.error_code == ErrorCode.NONE
    assert read_moves(image.config(broker_resource(None))) == plan.steps
    for _ in range(3):
        image = _advance(image)
        assert _moving(image) == 2
    image = _finish(image)
    assert _plan(image).is_empty
    assert (
        _last(image)
        == f"{plan.digest} done: {len(plan.steps)} of {len(plan.steps)} moves made, 0 skipped"
    )
    assert all(each.leader == each.replicas[0] for each in image.topics["t"].partitions.values())


def test_a_new_controller_goes_on_from_a_snapshot_of_the_image():
    image, _ = _approve(_unbalanced(), headrace_balance_concurrent_moves="1")
    image = _catch_up(_advance(image))
    reloaded = image_of(*snapshot_records(image))
    assert progress_of(reloaded) == progress_of(image)
    assert progress_of(reloaded).count(MoveState.DONE, MoveState.ELECTING) == 1
    assert _plan(_finish(reloaded)).is_empty


def test_a_paused_plan_begins_nothing_and_goes_on_when_resumed():
    image, _ = _approve(_unbalanced(), headrace_balance_concurrent_moves="1")
    image, answer = _set(_advance(image), headrace_balance_state="paused")
    assert answer.error_code == ErrorCode.NONE
    assert _moving(image) == 1
    image = _catch_up(image)
    assert not decide_advance_plan(image, POLICY).records
    image, _ = _set(image, headrace_balance_state="running")
    assert _plan(_finish(image)).is_empty


def test_a_cancelled_plan_returns_what_moves_and_keeps_what_is_done():
    image, _ = _approve(_unbalanced(), headrace_balance_concurrent_moves="1")
    image = _catch_up(_advance(image))
    before = {index: each.replicas for index, each in image.topics["t"].partitions.items()}
    image = _advance(image)
    assert _moving(image) == 1
    image, _ = _set(image, headrace_balance_state="cancelled")
    image = _advance(image)
    assert {i: each.replicas for i, each in image.topics["t"].partitions.items()} == before
    assert stored_plan(image) is None
    assert "cancelled: 1 of" in _last(image)


def test_what_somebody_else_changed_is_skipped_and_a_dead_target_is_waited_for():
    image, _ = _approve(_unbalanced(4))
    plan = stored_plan(image)
    gone = decide_fence_broker(image, NodeId(3), POLICY)
    image = replayed(image, list(gone.records))
    assert progress_of(image).count(MoveState.BLOCKED) > 0
    image = _advance(image)
    assert not any(3 in each.replicas for each in image.topics["t"].partitions.values())
    image = replayed(image, [RemoveTopicRecord(topic_id=image.topics["t"].topic_id)])
    image, _ = create(image, creatable("t", assignments=[[1]] * 4))
    assert progress_of(image).count(MoveState.SKIPPED) == len(plan.moves)
    assert f"{len(plan.moves)} skipped" in _last(_finish(image))


def test_a_plan_of_leaders_alone_copies_nothing():
    image, _ = create(image_with_brokers(2), creatable("t", assignments=[[1, 2]] * 6))
    plan = _plan(image)
    assert plan.bytes_total == 0
    assert len(plan.leader_moves) == 3
    image, _ = _approve(image, plan)
    image = _advance(_advance(image))
    assert _moving(image) == 0
    image = _finish(image)
    assert (
        sorted(each.leader for each in image.topics["t"].partitions.values()) == [1] * 3 + [2] * 3
    )


def test_the_hash_stays_while_a_plans_sizes_grow():
    image = _unbalanced(6)
    small = plan_drain(observe_cluster(image, Measurements(size_bytes={("t", 0): 10})), NodeId(1))
    large = plan_drain(observe_cluster(image, Measurements(size_bytes={("t", 0): 99})), NodeId(1))
    assert small.steps != large.steps
    assert small.digest == large.digest


def test_the_throttle_holds_while_there_is_a_plan():
    image = _unbalanced()
    image, _ = _set(image, headrace_balance_throttle="1000000")
    assert balance_throttle(image) > 1_000_000
    image, _ = _approve(image)
    assert balance_throttle(image) == 1_000_000
    assert balance_throttle(_finish(image)) > 1_000_000


def test_a_throttle_of_all_moves_holds_without_a_plan_and_the_lower_one_with_it():
    image, _ = _set(_unbalanced(), headrace_moves_throttle="2000000")
    assert balance_throttle(image) == 2_000_000
    image, _ = _set(image, headrace_balance_throttle="1000000")
    assert balance_throttle(image) == 2_000_000
    image, _ = _approve(image)
    assert balance_throttle(image) == 1_000_000
    assert balance_throttle(_finish(image)) == 2_000_000


@pytest.mark.parametrize(
    "change",
    [
        {"headrace.balance.plan": "0123456789abcdef"},
        {"headrace.balance.state": "fast"},
        {"headrace.balance.moves.0": "t:0:1-2>1-1@0"},
        {"headrace.balance.moves.0": "t:0:1-2>3@0;t:0:1-2>3@0"},
        {"headrace.balance.moves.0": None},
        {"headrace.balance.throttle": "0"},
        {"headrace.balance.last": "done"},
    ],
)
def test_half_a_plan_is_refused(change):
    image = _unbalanced()
    settings = {**plan_settings(_plan(image).steps), "headrace.balance.state": "running", **change}
    image, answer = _set(image, **settings)
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert stored_plan(image) is None


def test_a_second_plan_waits_until_the_first_is_cancelled():
    image = _unbalanced()
    image, _ = _approve(image)
    other = _plan(image, drain=NodeId(1))
    after, answer = _approve(image, other)
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert "under way" in answer.error_message
    assert after == image


def test_a_plan_that_no_longer_fits_is_refused():
    image = _unbalanced()
    plan = _plan(image)
    moved = _finish(_approve(image)[0])
    _, answer = _approve(moved, plan)
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert "make a new plan" in answer.error_message


def test_a_plan_belongs_to_the_cluster_not_to_a_broker():
    _, answer = _set(_unbalanced(), "1", headrace_balance_state="running")
    assert answer.error_code == ErrorCode.INVALID_CONFIG


def test_a_plan_of_ten_thousand_moves_fits_into_strings_that_clients_can_send():
    brokers = image_with_brokers(6)
    image, _ = create(brokers, creatable("a-topic-with-a-name", 5000, 3))
    plan = plan_drain(observe_cluster(image, Measurements()), NodeId(1))
    settings = plan_settings(plan.steps)
    assert len(plan.steps) > 2000
    assert max(map(len, settings.values())) < 32767
    image, answer = _approve(image, plan)
    assert answer.error_code == ErrorCode.NONE
    assert stored_plan(image).moves == plan.steps


def test_leaders_that_move_away_meanwhile_come_back_at_the_end():
    image, _ = _approve(_unbalanced(), headrace_balance_concurrent_moves="1")
    image = _catch_up(_advance(image))
    request = ElectLeadersRequest(election_type=0, topic_partitions=None)
    image = replayed(image, list(decide_elect_leaders(image, request, POLICY).records))
    assert _plan(_finish(image)).is_empty
