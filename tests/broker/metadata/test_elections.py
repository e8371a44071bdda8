"""Leaders are elected where somebody asks, or where it is due; never where it is not needed."""

import pytest

from headrace_broker.metadata.brokers.liveness import decide_fence_broker
from headrace_broker.metadata.configs.alter_configs import decide_incremental_alter_configs
from headrace_broker.metadata.elections import (
    decide_elect_leaders,
    decide_leaderless_partitions,
    decide_preferred_leaders,
)
from headrace_broker.metadata.records import BrokerRegistrationChangeRecord, PartitionChangeRecord
from headrace_broker.metadata.settings.broker_settings import BrokerSettings
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from headrace_broker.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace_broker.protocol.types import NodeId
from support.metadata import POLICY, creatable, create, decide_unfence, image_with_brokers, replayed

_PREFERRED, _UNCLEAN = 0, 1


def _image(min_isr="1"):
    made, _ = create(
        image_with_brokers(3),
        creatable("t", assignments=[[1, 2], [2, 3], [3, 1]], min_insync_replicas=min_isr),
    )
    return made


def _fence(image, *nodes):
    for node in nodes:
        image = replayed(image, list(decide_fence_broker(image, node, POLICY).records))
    return image


def _unfence(image, node):
    decision = decide_unfence(image, node, image.brokers[node].epoch, POLICY)
    return replayed(image, list(decision.records))


def _elect(image, kind, partitions=(0,), topic="t"):
    asked = None
    if partitions is not None:
        asked = [TopicPartitions(topic=topic, partitions=list(partitions))]
    request = ElectLeadersRequest(election_type=kind, topic_partitions=asked)
    decision = decide_elect_leaders(image, request, POLICY)
    outcomes = {
        (result.topic, outcome.partition_id): outcome.error_code
        for result in decision.response.replica_election_results
        for outcome in result.partition_result
    }
    return replayed(image, list(decision.records)), outcomes


def _isr(image, index, *isr):
    change = PartitionChangeRecord(
        topic_id=image.topics["t"].topic_id, partition_id=index, isr=list(isr)
    )
    return replayed(image, [change])


def _configure(image, name, value, *, kind=2, resource="t"):
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=kind,
                resource_name=resource,
                configs=[AlterableConfig(name=name, config_operation=0, value=value)],
            )
        ]
    )
    settings = BrokerSettings(node_id=NodeId(1))
    decision = decide_incremental_alter_configs(image, request, settings)
    return replayed(image, list(decision.records)), decision.response.responses[0].error_code


def test_a_preferred_leader_that_came_back_in_sync_is_elected_on_request():
    image = _unfence(_fence(_image(), 1), 1)
    assert image.partition("t", 0).leader == 2
    same, outcomes = _elect(image, _PREFERRED)
    assert outcomes == {("t", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    assert same.partition("t", 0).leader == 2
    image, outcomes = _elect(_isr(image, 0, 2, 1), _PREFERRED)
    assert outcomes == {("t", 0): 0}
    assert image.partition("t", 0).leader == 1
    _, outcomes = _elect(image, _PREFERRED)
    assert outcomes == {("t", 0): ErrorCode.ELECTION_NOT_NEEDED}


def test_everything_may_be_meant_and_then_only_what_changes_is_answered():
    image = _isr(_unfence(_fence(_image(), 1), 1), 0, 2, 1)
    image, outcomes = _elect(image, _PREFERRED, None)
    assert outcomes == {("t", 0): 0}
    _, outcomes = _elect(image, _PREFERRED, [0, 9])
    assert outcomes[("t", 9)] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    _, outcomes = _elect(image, _PREFERRED, topic="x")
    assert outcomes == {("x", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    with pytest.raises(ApiError) as raised:
        _elect(image, 7)
    assert raised.value.code == ErrorCode.INVALID_REQUEST


def test_an_unclean_election_takes_any_live_replica_and_says_that_it_recovers():
    image = _unfence(_fence(_image(), 1, 2), 1)
    assert image.partition("t", 0).leader == -1
    assert image.partition("t", 0).eligible_leader_replicas == (2,)
    image, outcomes = _elect(image, _UNCLEAN)
    assert outcomes == {("t", 0): 0}
    after = image.partition("t", 0)
    assert (after.leader, after.isr, after.eligible_leader_replicas) == (1, (1,), ())
    assert after.leader_recovery_state == 1
    _, outcomes = _elect(image, _UNCLEAN)
    assert outcomes == {("t", 0): ErrorCode.ELECTION_NOT_NEEDED}


def test_without_any_live_replica_there_is_nobody_to_elect():
    _, outcomes = _elect(_fence(_image(), 1, 2), _UNCLEAN)
    assert outcomes == {("t", 0): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}


def test_leadership_returns_to_preferred_leaders_up_to_a_limit():
    image = _unfence(_fence(_image(), 1, 2), 1)
    image = _isr(_unfence(image, 2), 0, 2, 1)
    image = _isr(image, 1, 3, 2)
    assert [image.partition("t", index).leader for index in range(3)] == [2, 3, 3]
    assert decide_preferred_leaders(image, POLICY, 1).response == 1
    decision = decide_preferred_leaders(image, POLICY)
    assert decision.response == 2
    image = replayed(image, list(decision.records))
    assert [image.partition("t", index).leader for index in range(3)] == [1, 2, 3]
    assert not decide_preferred_leaders(image, POLICY).records


def test_what_is_without_leader_gets_one_when_it_may():
    image = _fence(_image(), 1, 2)
    image = replayed(
        image, [BrokerRegistrationChangeRecord(broker_id=2, broker_epoch=2, fenced=-1)]
    )
    decision = decide_leaderless_partitions(image, POLICY)
    assert decision.response == 1
    assert replayed(image, list(decision.records)).partition("t", 0).leader == 2


def test_allowing_unclean_elections_elects_at_once():
    image = _unfence(_fence(_image(), 1, 2), 1)
    assert image.partition("t", 0).leader == -1
    image, _ = _configure(image, "unclean.leader.election.enable", "true")
    assert image.partition("t", 0).leader == 1


def test_a_lower_minimum_ends_eligibility_in_the_same_batch():
    image = _fence(_image("2"), 1)
    assert image.partition("t", 0).eligible_leader_replicas == (1,)
    image, _ = _configure(image, "min.insync.replicas", "1")
    assert image.partition("t", 0).eligible_leader_replicas == ()


def test_a_higher_minimum_makes_older_requests_of_leaders_stale():
    image = _image("1")
    before = image.partition("t", 0)
    image, _ = _configure(image, "min.insync.replicas", "2")
    after = image.partition("t", 0)
    assert after.partition_epoch == before.partition_epoch + 1
    assert (after.leader, after.leader_epoch, after.isr) == (1, before.leader_epoch, before.isr)


def test_one_broker_has_no_minimum_of_its_own():
    image = _image()
    after, error = _configure(image, "min.insync.replicas", "2", kind=4, resource="1")
    assert error == ErrorCode.INVALID_CONFIG
    assert after.configs == image.configs
    _, error = _configure(image, "min.insync.replicas", "2", kind=4, resource="")
    assert error == 0


def test_throttles_are_set_for_brokers_and_checked():
    image = _image()
    for name in ("leader.replication.throttled.rate", "follower.replication.throttled.rate"):
        image, error = _configure(image, name, "1000", kind=4, resource="1")
        assert error == 0
        assert image.config((4, "1"))[name] == "1000"
        _, error = _configure(image, name, "-1", kind=4, resource="")
        assert error == ErrorCode.INVALID_CONFIG
