"""Replicas move by way of the ISR; a move can be changed, cancelled, and listed."""

import pytest

from headrace_broker.metadata.alter_partition import decide_alter_partition
from headrace_broker.metadata.brokers.liveness import decide_fence_broker
from headrace_broker.metadata.internal_topics import decide_grow_internal_topics
from headrace_broker.metadata.reassignments import (
    decide_alter_reassignments,
    decide_complete_reassignments,
    list_reassignments,
)
from headrace_broker.metadata.records import PartitionChangeRecord
from headrace_broker.metadata.topic_growth import decide_create_partitions
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
)
from headrace_broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace_broker.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace_broker.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from support.metadata import (
    POLICY,
    broker_record,
    creatable,
    create,
    image_with_brokers,
    replayed,
    seeded_rng,
)

_OFFSETS = "__consumer_offsets"


@pytest.fixture
def image():
    made, _ = create(image_with_brokers(5), creatable("t", assignments=[[1, 2, 3], [2, 3, 1]]))
    return made


def _reassign(image, replicas, *, topic="t", index=0, allow_factor_change=True):
    request = AlterPartitionReassignmentsRequest(
        allow_replication_factor_change=allow_factor_change,
        topics=[
            ReassignableTopic(
                name=topic,
                partitions=[ReassignablePartition(partition_index=index, replicas=replicas)],
            )
        ],
    )
    decision = decide_alter_reassignments(image, request, POLICY)
    outcome = decision.response.responses[0].partitions[0]
    return replayed(image, list(decision.records)), outcome.error_code


def _in_sync(image, isr):
    """The leader says who is in sync."""
    partition = image.partition("t", 0)
    data = AlterPartitionRequestPartitionData(
        partition_index=0,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        new_isr=isr,
    )
    topic = AlterPartitionRequestTopicData(topic_id=image.topics["t"].topic_id, partitions=[data])
    request = AlterPartitionRequest(
        broker_id=partition.leader, broker_epoch=partition.leader, topics=[topic]
    )
    decision = decide_alter_partition(image, request, POLICY)
    outcome = decision.response.topics[0].partitions[0]
    return replayed(image, list(decision.records)), outcome.error_code


def _roles(image):
    partition = image.partition("t", 0)
    return partition.replicas, partition.adding_replicas, partition.removing_replicas


def test_a_move_ends_when_all_of_its_target_are_in_sync(image):
    image, error = _reassign(image, [1, 4, 5])
    assert error == 0
    assert _roles(image) == ((1, 4, 5, 2, 3), (4, 5), (2, 3))
    image, _ = _in_sync(image, [1, 2, 3, 4])
    assert _roles(image) == ((1, 4, 5, 2, 3), (4, 5), (2, 3))
    image, _ = _in_sync(image, [1, 2, 3, 4, 5])
    assert _roles(image) == ((1, 4, 5), (), ())
    partition = image.partition("t", 0)
    assert (partition.leader, set(partition.isr)) == (1, {1, 4, 5})
    # Who is no longer a replica must not follow in the same leader epoch.
    assert partition.leader_epoch == 1


def test_a_leader_that_moves_away_hears_that_there_is_a_new_one(image):
    image, _ = _reassign(image, [4, 5])
    image, error = _in_sync(image, [1, 2, 3, 4, 5])
    assert error == ErrorCode.NEW_LEADER_ELECTED
    assert image.partition("t", 0).leader == 4
    assert _roles(image) == ((4, 5), (), ())


@pytest.mark.parametrize("assignments", [None, [[2, 3, 4]]])
def test_a_topic_that_grows_in_the_middle_of_a_move_gets_no_more_replicas(image, assignments):
    image, _ = _reassign(image, [1, 4, 5])
    topic = CreatePartitionsTopic(
        name="t",
        count=3,
        assignments=assignments
        and [CreatePartitionsAssignment(broker_ids=each) for each in assignments],
    )
    request = CreatePartitionsRequest(topics=[topic])
    decision = decide_create_partitions(image, request, POLICY, seeded_rng())
    assert decision.response.results[0].error_code == ErrorCode.NONE
    grown = replayed(image, list(decision.records))
    assert len(grown.partition("t", 2).replicas) == 3


def test_fewer_replicas_or_another_order_need_no_waiting(image):
    image, _ = _reassign(image, [2, 1])
    assert _roles(image) == ((2, 1), (), ())
    assert image.partition("t", 0).isr == (1, 2)
    image, _ = _reassign(image, [1, 2])
    assert _roles(image) == ((1, 2), (), ())


def test_a_cancelled_move_leaves_things_as_they_were(image):
    before = _roles(image)
    image, _ = _reassign(image, [1, 4, 5])
    image, _ = _in_sync(image, [1, 2, 3, 4])
    image, error = _reassign(image, None)
    assert error == 0
    assert _roles(image) == before
    assert image.partition("t", 0).isr == (1, 2, 3)
    _, error = _reassign(image, None)
    assert error == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_a_changed_move_can_still_be_cancelled_to_where_it_began(image):
    before = _roles(image)
    image, _ = _reassign(image, [1, 2, 4])
    image, _ = _reassign(image, [1, 2, 5])
    assert _roles(image) == ((1, 2, 5, 4, 3), (5, 4), (4, 3))
    cancelled, _ = _reassign(image, None)
    assert _roles(cancelled) == before
    finished, _ = _in_sync(image, [1, 2, 3, 5])
    assert _roles(finished) == ((1, 2, 5), (), ())


def test_a_move_is_not_cancelled_into_having_no_replica_in_sync(image):
    image, _ = _reassign(image, [4, 5])
    image, _ = _in_sync(image, [1, 4])
    for node in (2, 3, 1):
        image = replayed(image, list(decide_fence_broker(image, node, POLICY).records))
    assert image.partition("t", 0).leader == 4
    _, error = _reassign(image, None)
    assert error == ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize(
    ("replicas", "options", "code"),
    [
        ([], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 1], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 9], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 2], {"allow_factor_change": False}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ([1, 2, 4], {"allow_factor_change": False}, ErrorCode.NONE),
        ([1], {"topic": "x"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ([1], {"index": 9}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_what_cannot_be_is_refused(image, replicas, options, code):
    after, error = _reassign(image, replicas, **options)
    assert error == code
    if code != ErrorCode.NONE:
        assert after.topics == image.topics


def test_moves_are_listed_all_or_those_asked_for(image):
    image, _ = _reassign(image, [1, 4, 5])
    for topics in (
        None,
        [ListPartitionReassignmentsTopics(name="t", partition_indexes=[0, 1, 9])],
    ):
        listed = list_reassignments(image, ListPartitionReassignmentsRequest(topics=topics))
        [topic] = listed.topics
        [partition] = topic.partitions
        assert partition.replicas == [1, 4, 5, 2, 3]
        assert (partition.adding_replicas, partition.removing_replicas) == ([4, 5], [2, 3])
    other = [ListPartitionReassignmentsTopics(name="t", partition_indexes=[1])]
    assert not list_reassignments(image, ListPartitionReassignmentsRequest(topics=other)).topics


def test_nothing_is_completed_that_is_not_in_sync(image):
    image, _ = _reassign(image, [1, 4, 5])
    assert decide_complete_reassignments(image, POLICY).response == 0


def test_the_clusters_own_topics_get_their_replicas_when_brokers_have_come():
    image, _ = create(image_with_brokers(1), creatable(_OFFSETS, 12, 1))
    assert not decide_grow_internal_topics(image, {_OFFSETS: 3}, POLICY).records
    image = replayed(image, [broker_record(2), broker_record(3), broker_record(4)])
    decision = decide_grow_internal_topics(image, {_OFFSETS: 3}, POLICY)
    assert decision.response == 12
    image = replayed(image, list(decision.records))
    firsts = [partition.replicas[0] for partition in image.topics[_OFFSETS].partitions.values()]
    for partition in image.topics[_OFFSETS].partitions.values():
        assert len(partition.replicas) == 3
        assert partition.leader == 1
    assert [firsts.count(node) for node in (1, 2, 3, 4)] == [3, 3, 3, 3]
    assert not decide_grow_internal_topics(image, {_OFFSETS: 3}, POLICY).records


def test_what_stands_completed_is_completed_and_counted(image):
    """All of the target is in sync, and no AlterPartition comes that would end the move."""
    image, _ = _reassign(image, [1, 4, 5])
    topic_id = image.topics["t"].topic_id
    grown = PartitionChangeRecord(topic_id=topic_id, partition_id=0, isr=[1, 2, 3, 4, 5])
    decision = decide_complete_reassignments(replayed(image, [grown]), POLICY)
    assert decision.response == 1
    image = replayed(replayed(image, [grown]), list(decision.records))
    assert _roles(image) == ((1, 4, 5), (), ())
