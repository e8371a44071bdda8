"""A leader's request counts for the epochs that it knows, and only eligible replicas get in."""

import uuid

import pytest

from headrace_broker.metadata.alter_partition import decide_alter_partition
from headrace_broker.metadata.brokers.liveness import decide_fence_broker
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerState,
)
from support.metadata import POLICY, creatable, create, image_with_brokers, replayed


@pytest.fixture
def image():
    made, _ = create(
        image_with_brokers(4),
        creatable("t", assignments=[[1, 2, 3]], min_insync_replicas="2"),
    )
    return made


def _ask(image, isr, *, version=3, **changes):
    """Return the image after broker 1's request, and the partition's outcome."""
    partition = image.partition("t", 0)
    leader = changes.pop("leader", 1)
    states = [
        BrokerState(broker_id=node, broker_epoch=changes.get("epochs", {}).get(node, node))
        for node in isr
    ]
    changes.pop("epochs", None)
    values = {
        "partition_index": 0,
        "leader_epoch": partition.leader_epoch,
        "partition_epoch": partition.partition_epoch,
        **({"new_isr_with_epochs": states} if version == 3 else {"new_isr": list(isr)}),
    }
    topic_id = changes.pop("topic_id", image.topics["t"].topic_id)
    data = AlterPartitionRequestPartitionData(**{**values, **changes})
    topic = AlterPartitionRequestTopicData(topic_id=topic_id, partitions=[data])
    request = AlterPartitionRequest(broker_id=leader, broker_epoch=leader, topics=[topic])
    decision = decide_alter_partition(image, request, POLICY)
    outcome = decision.response.topics[0].partitions[0]
    return replayed(image, list(decision.records)), outcome


@pytest.mark.parametrize("version", [2, 3])
def test_an_isr_shrinks_and_grows_with_a_new_partition_epoch_each_time(image, version):
    image, outcome = _ask(image, [1, 2], version=version)
    assert (outcome.error_code, outcome.isr, outcome.partition_epoch) == (0, [1, 2], 1)
    image, outcome = _ask(image, [1, 2, 3], version=version)
    assert (outcome.error_code, outcome.isr, outcome.partition_epoch) == (0, [1, 2, 3], 2)
    assert outcome.leader_epoch == image.partition("t", 0).leader_epoch == 0


def test_below_the_minimum_the_replica_that_leaves_is_eligible_until_the_isr_is_whole(image):
    image, _ = _ask(image, [1, 2])
    assert image.partition("t", 0).eligible_leader_replicas == ()
    image, _ = _ask(image, [1])
    assert image.partition("t", 0).eligible_leader_replicas == (2,)
    image, _ = _ask(image, [1, 3])
    assert image.partition("t", 0).eligible_leader_replicas == ()


def test_asking_for_what_is_already_so_changes_nothing(image):
    after, outcome = _ask(image, [1, 2, 3])
    assert after.partition("t", 0) == image.partition("t", 0)
    assert (outcome.error_code, outcome.partition_epoch) == (0, 0)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"leader_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": 1}, ErrorCode.NOT_CONTROLLER),
        ({"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"partition_index": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic_id": uuid.UUID(int=9)}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"leader": 2}, ErrorCode.INVALID_REQUEST),
        ({"isr": [2, 3]}, ErrorCode.INVALID_REQUEST),
        ({"isr": [1, 1]}, ErrorCode.INVALID_REQUEST),
        ({"isr": [1, 4]}, ErrorCode.INVALID_REQUEST),
        ({"leader_recovery_state": 1}, ErrorCode.INVALID_REQUEST),
        ({"leader_recovery_state": 5}, ErrorCode.INVALID_REQUEST),
        ({"epochs": {2: 99}}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_what_does_not_hold_is_refused_with_kafkas_error(image, changes, code):
    isr = changes.get("isr", [1, 2])
    rest = {name: value for name, value in changes.items() if name != "isr"}
    after, outcome = _ask(image, isr, **rest)
    assert outcome.error_code == code
    assert after.partition("t", 0) == image.partition("t", 0)


def test_of_what_one_request_asks_twice_the_second_is_refused(image):
    topic_id, partition = image.topics["t"].topic_id, image.partition("t", 0)
    asked = [
        AlterPartitionRequestPartitionData(
            partition_index=0,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr_with_epochs=[BrokerState(broker_id=node, broker_epoch=node) for node in isr],
        )
        for isr in ([1, 2], [1, 3])
    ]
    topic = AlterPartitionRequestTopicData(topic_id=topic_id, partitions=asked)
    request = AlterPartitionRequest(broker_id=1, broker_epoch=1, topics=[topic])
    decision = decide_alter_partition(image, request, POLICY)
    outcomes = [each.error_code for each in decision.response.topics[0].partitions]
    assert outcomes == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert replayed(image, list(decision.records)).partition("t", 0).isr == (1, 2)


def test_a_fenced_replica_is_not_eligible(image):
    decision = decide_fence_broker(image, 3, POLICY)
    image = replayed(image, list(decision.records))
    _, outcome = _ask(image, [1, 2, 3])
    assert outcome.error_code == ErrorCode.INELIGIBLE_REPLICA


def test_a_former_leader_is_fenced_and_a_stale_broker_is_refused(image):
    before = image
    decision = decide_fence_broker(image, 1, POLICY)
    image = replayed(image, list(decision.records))
    _, outcome = _ask(image, [1, 2], leader_epoch=before.partition("t", 0).leader_epoch)
    assert outcome.error_code == ErrorCode.FENCED_LEADER_EPOCH
    request = AlterPartitionRequest(broker_id=1, broker_epoch=0)
    with pytest.raises(ApiError) as raised:
        decide_alter_partition(image, request, POLICY)
    assert raised.value.code == ErrorCode.STALE_BROKER_EPOCH
