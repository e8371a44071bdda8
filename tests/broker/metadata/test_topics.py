"""Creation, deletion and growth of topics, with the errors that Kafka gives."""

from dataclasses import replace

import pytest

from headrace_broker.metadata.auto_creation import (
    WantedTopic,
    decide_auto_create_topics,
    decide_ensure_topic,
)
from headrace_broker.metadata.names import is_valid_topic_name
from headrace_broker.metadata.settings.resources import ConfigSource, topic_resource
from headrace_broker.metadata.topic_growth import decide_create_partitions
from headrace_broker.metadata.topics import decide_delete_topics, new_topic_id
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace_broker.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from support.metadata import (
    POLICY,
    broker_record,
    creatable,
    create,
    image_of,
    image_with_brokers,
    replayed,
    seeded_rng,
)


def _delete(image, *states, policy=POLICY):
    decision = decide_delete_topics(image, DeleteTopicsRequest(topics=list(states)), policy)
    return replayed(image, list(decision.records)), decision.response.responses


def _grow(image, *topics, policy=POLICY, validate_only=False):
    request = CreatePartitionsRequest(topics=list(topics), validate_only=validate_only)
    decision = decide_create_partitions(image, request, policy, seeded_rng())
    return replayed(image, list(decision.records)), decision.response.results


@pytest.mark.parametrize(
    ("topic", "code", "says"),
    [
        (creatable(""), ErrorCode.INVALID_TOPIC_EXCEPTION, "empty"),
        (creatable("."), ErrorCode.INVALID_TOPIC_EXCEPTION, "not allowed"),
        (creatable("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION, "249"),
        (creatable("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "alphanumerics"),
        (creatable("a\n"), ErrorCode.INVALID_TOPIC_EXCEPTION, "alphanumerics"),
        (creatable("é"), ErrorCode.INVALID_TOPIC_EXCEPTION, "alphanumerics"),
        (creatable("__cluster_metadata"), ErrorCode.INVALID_REQUEST, "own log"),
        (creatable("old"), ErrorCode.TOPIC_ALREADY_EXISTS, "already exists"),
        (creatable("with.dot"), ErrorCode.INVALID_TOPIC_EXCEPTION, "with_dot"),
        (creatable("t", 0), ErrorCode.INVALID_PARTITIONS, "non-positive"),
        (creatable("t", -2), ErrorCode.INVALID_PARTITIONS, "non-positive"),
        (creatable("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR, "larger than 0"),
        (creatable("t", 1, 4), ErrorCode.INVALID_REPLICATION_FACTOR, "only 3 broker"),
        (creatable("t", 10_001), ErrorCode.POLICY_VIOLATION, "partitions.per.topic"),
        (creatable("t", no_such="1"), ErrorCode.INVALID_CONFIG, "no.such"),
        (creatable("t", retention_ms="-2"), ErrorCode.INVALID_CONFIG, "at least -1"),
        (creatable("t", retention_ms=None), ErrorCode.INVALID_CONFIG, "Null"),
        (creatable("t", assignments=[[1], [9]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 9"),
        (creatable("t", assignments=[[1, 1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "once"),
        (creatable("t", assignments=[[1], [1, 2]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "have 1"),
        (creatable("t", assignments=[[]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "empty"),
    ],
)
def test_a_topic_that_may_not_be_is_refused_with_its_reason(topic, code, says):
    image, _ = create(image_with_brokers(3), creatable("old"), creatable("with_dot"))
    after, results = create(image, topic)
    assert results[topic.name].error_code == code
    assert says in results[topic.name].error_message
    assert after.topics == image.topics
    has_bad_name = topic.name == "__cluster_metadata" or (
        code is ErrorCode.INVALID_TOPIC_EXCEPTION and topic.name != "with.dot"
    )
    assert is_valid_topic_name(topic.name) is not has_bad_name


def test_a_manual_assignment_excludes_counts():
    topic = creatable("t", assignments=[[1]])
    topic.num_partitions = 1
    _, results = create(image_with_brokers(1), topic)
    assert results["t"].error_code == ErrorCode.INVALID_REQUEST


def test_a_manual_assignment_names_partitions_without_gaps():
    topic = creatable("t", assignments=[[1], [1]])
    topic.assignments[1].partition_index = 2
    _, results = create(image_with_brokers(1), topic)
    assert results["t"].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_one_bad_topic_does_not_stop_the_others():
    image, results = create(image_with_brokers(1), creatable("good"), creatable("bad name"))
    assert list(image.topics) == ["good"]
    assert results["good"].error_code == ErrorCode.NONE
    assert results["bad name"].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_name_twice_in_a_request_is_made_not_even_once():
    image, results = create(image_with_brokers(1), creatable("t"), creatable("t", 2))
    assert not image.topics
    assert results["t"].error_code == ErrorCode.INVALID_REQUEST


def test_names_that_collide_within_a_request_are_not_both_made():
    image, _ = create(image_with_brokers(1), creatable("a.b"), creatable("a_b"))
    assert list(image.topics) == ["a.b"]


def test_minus_one_takes_the_brokers_defaults():
    policy = replace(POLICY, num_partitions=5, replication_factor=2)
    image, results = create(image_with_brokers(2), creatable("t", -1, -1), policy=policy)
    assert (results["t"].num_partitions, results["t"].replication_factor) == (5, 2)
    assert len(image.topics["t"].partitions) == 5


def test_the_answer_lists_every_setting_with_its_source():
    policy = replace(POLICY, static={"log.segment.bytes": "2097152", "log.retention.hours": "1"})
    _, results = create(image_with_brokers(1), creatable("t", retention_ms="9"), policy=policy)
    configs = {entry.name: (entry.value, entry.config_source) for entry in results["t"].configs}
    assert configs["retention.ms"] == ("9", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert configs["segment.bytes"] == ("2097152", ConfigSource.STATIC_BROKER_CONFIG)
    assert configs["cleanup.policy"] == ("delete", ConfigSource.DEFAULT_CONFIG)


def test_validate_only_answers_the_same_and_changes_nothing():
    image = image_with_brokers(1)
    after, results = create(image, creatable("t", 3), validate_only=True)
    assert results["t"].num_partitions == 3
    assert not after.topics


def test_limits_count_over_the_request_and_the_cluster():
    policy = replace(POLICY, partitions_per_request_max=10, partitions_max=15)
    image, results = create(
        image_with_brokers(1),
        creatable("a", 6),
        creatable("b", 6),
        creatable("c", 4),
        policy=policy,
    )
    assert sorted(image.topics) == ["a", "c"]
    assert "per request" in results["b"].error_message
    _, results = create(image, creatable("d", 6), policy=policy)
    assert "headrace.max.partitions (15)" in results["d"].error_message


def test_topic_ids_never_start_with_a_minus_in_base64():
    rng = seeded_rng(3)
    assert all(new_topic_id(rng).bytes[0] >> 2 != 62 for _ in range(2000))


def test_a_topic_is_deleted_by_name_or_by_id():
    image, _ = create(image_with_brokers(1), creatable("a"), creatable("b"))
    by_id = image.topics["b"].topic_id
    after, results = _delete(image, DeleteTopicState(name="a"), DeleteTopicState(topic_id=by_id))
    assert not after.topics
    assert [(result.name, result.error_code) for result in results] == [("a", 0), ("b", 0)]


def test_what_cannot_be_deleted_is_said_by_code():
    image, _ = create(image_with_brokers(1), creatable("a"), creatable("__consumer_offsets"))
    topic_id = image.topics["a"].topic_id
    after, results = _delete(
        image,
        DeleteTopicState(name="none"),
        DeleteTopicState(topic_id=new_topic_id(seeded_rng(1))),
        DeleteTopicState(),
        DeleteTopicState(name="a", topic_id=topic_id),
        DeleteTopicState(name="__consumer_offsets"),
        DeleteTopicState(name="a"),
        DeleteTopicState(topic_id=topic_id),
    )
    assert [result.error_code for result in results] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
    ]
    assert list(after.topics) == ["__consumer_offsets"]


def test_deletion_can_be_switched_off():
    image, _ = create(image_with_brokers(1), creatable("a"))
    policy = replace(POLICY, deletion_enabled=False)
    _, results = _delete(image, DeleteTopicState(name="a"), policy=policy)
    assert results[0].error_code == ErrorCode.TOPIC_DELETION_DISABLED


def test_a_topic_grows_with_the_replication_factor_it_has():
    image, _ = create(image_with_brokers(3), creatable("t", 2, 2))
    topic_id = image.topics["t"].topic_id
    image, _ = _grow(image, CreatePartitionsTopic(name="t", count=5, assignments=None))
    partitions = image.topics_by_id[topic_id].partitions
    assert sorted(partitions) == [0, 1, 2, 3, 4]
    assert {len(partition.replicas) for partition in partitions.values()} == {2}


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (CreatePartitionsTopic(name="t", count=2, assignments=None), "INVALID_PARTITIONS"),
        (CreatePartitionsTopic(name="t", count=1, assignments=None), "INVALID_PARTITIONS"),
        (
            CreatePartitionsTopic(name="none", count=9, assignments=None),
            "UNKNOWN_TOPIC_OR_PARTITION",
        ),
        (CreatePartitionsTopic(name="t", count=10_001, assignments=None), "POLICY_VIOLATION"),
        (
            CreatePartitionsTopic(name="__consumer_offsets", count=9, assignments=None),
            "POLICY_VIOLATION",
        ),
        (CreatePartitionsTopic(name="t", count=3, assignments=[]), "INVALID_REPLICA_ASSIGNMENT"),
        (
            CreatePartitionsTopic(
                name="t", count=3, assignments=[CreatePartitionsAssignment(broker_ids=[1, 2])]
            ),
            "INVALID_REPLICA_ASSIGNMENT",
        ),
    ],
)
def test_growth_that_may_not_be_is_refused(topic, code):
    image, _ = create(image_with_brokers(2), creatable("t", 2), creatable("__consumer_offsets"))
    after, results = _grow(image, topic)
    assert results[0].error_code == ErrorCode[code]
    assert after.partition_count == image.partition_count


def test_growth_follows_a_manual_assignment():
    image, _ = create(image_with_brokers(2), creatable("t", 1))
    wanted = [CreatePartitionsAssignment(broker_ids=[2])]
    image, _ = _grow(image, CreatePartitionsTopic(name="t", count=2, assignments=wanted))
    assert image.partition("t", 1).replicas == (2,)


def test_a_replica_on_a_fenced_broker_is_out_of_sync_and_does_not_lead():
    image = image_of(broker_record(1, fenced=True), broker_record(2))
    image, _ = create(image, creatable("t", 1, 2))
    partition = image.partition("t", 0)
    assert (partition.leader, partition.isr) == (2, (2,))
    assert sorted(partition.replicas) == [1, 2]
    _, results = create(image_of(broker_record(1, fenced=True)), creatable("u"))
    assert results["u"].error_code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_an_internal_topic_is_made_once_with_as_many_replicas_as_there_are_brokers():
    wanted = WantedTopic(
        name="__consumer_offsets",
        num_partitions=4,
        replication_factor=3,
        configs={"cleanup.policy": "compact"},
    )
    image = image_with_brokers(2)
    decision = decide_ensure_topic(image, wanted, POLICY, seeded_rng())
    image = replayed(image, list(decision.records))
    assert len(image.topics["__consumer_offsets"].partitions) == 4
    assert len(image.partition("__consumer_offsets", 0).replicas) == 2
    assert image.config(topic_resource("__consumer_offsets")) == {"cleanup.policy": "compact"}
    assert decide_ensure_topic(image, wanted, POLICY, seeded_rng()).records == []
    with pytest.raises(ApiError):
        decide_ensure_topic(image_of(), wanted, POLICY, seeded_rng())


def test_auto_creation_says_which_names_cannot_be_topics():
    image, _ = create(image_with_brokers(1), creatable("old"))
    decision = decide_auto_create_topics(image, ["new", "old", "b d", "new"], POLICY, seeded_rng(8))
    assert decision.response == {
        "new": ErrorCode.NONE,
        "old": ErrorCode.NONE,
        "b d": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    assert sorted(replayed(image, list(decision.records)).topics) == ["new", "old"]
