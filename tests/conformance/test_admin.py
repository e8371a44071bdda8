"""Topics, partitions, settings, records, cluster and groups through administrative clients."""

import kafka
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)
from kafka.admin import ConfigResource as PythonResource
from kafka.errors import IncompatibleBrokerVersion

from support.kafka_peer import ToolFailedError, run_tool
from support.processes import wait_until
from support.records import Sent, consume_confluent, produce_confluent

_ERROR_SECONDS = 30


def _code(future) -> str:
    """The name of the error of a confluent-kafka future, or NO_ERROR."""
    error = future.exception(_ERROR_SECONDS)
    return "NO_ERROR" if error is None else error.args[0].name()


@pytest.fixture
def python_admin(bootstrap):
    client = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


def test_the_cluster_describes_itself(admin, python_admin, bootstrap):
    described = admin.describe_cluster().result(_ERROR_SECONDS)
    assert [f"{node.host}:{node.port}" for node in described.nodes] == [bootstrap]
    assert described.controller.id == 1
    cluster = python_admin.describe_cluster()
    assert cluster["cluster_id"] == described.cluster_id
    assert [broker["broker_id"] for broker in cluster["brokers"]] == [1]


def test_a_created_topic_has_its_partitions_leaders_and_settings(admin, new_topic):
    topic = new_topic(partitions=3, retention_ms="60000")
    metadata = admin.list_topics(topic, timeout=10).topics[topic]
    assert sorted(metadata.partitions) == [0, 1, 2]
    for partition in metadata.partitions.values():
        assert (partition.leader, partition.replicas, partition.isrs) == (1, [1], [1])
    resource = ConfigResource(ResourceType.TOPIC, topic)
    settings = admin.describe_configs([resource])[resource].result(_ERROR_SECONDS)
    assert settings["retention.ms"].value == "60000"
    assert not settings["retention.ms"].is_default
    assert settings["cleanup.policy"].value == "delete"
    assert settings["cleanup.policy"].is_default


@pytest.mark.parametrize(
    ("name", "partitions", "config", "code"),
    [
        ("bad name", 1, {}, "TOPIC_EXCEPTION"),
        ("x" * 250, 1, {}, "TOPIC_EXCEPTION"),
        (".", 1, {}, "TOPIC_EXCEPTION"),
        ("conformance-zero", 0, {}, "INVALID_PARTITIONS"),
        ("conformance-unknown", 1, {"no.such.setting": "1"}, "INVALID_CONFIG"),
        ("conformance-value", 1, {"retention.ms": "soon"}, "INVALID_CONFIG"),
    ],
)
def test_a_bad_topic_is_refused_by_name(admin, name, partitions, config, code):
    new = NewTopic(name, partitions, 1, config=config)
    assert _code(admin.create_topics([new])[name]) == code


def test_more_replicas_than_brokers_is_refused(admin):
    new = NewTopic("conformance-replicas", 1, 5)
    code = _code(admin.create_topics([new])["conformance-replicas"])
    assert code == "INVALID_REPLICATION_FACTOR"


def test_a_topic_that_exists_is_not_created_again(admin, new_topic):
    topic = new_topic()
    assert _code(admin.create_topics([NewTopic(topic, 1, 1)])[topic]) == "TOPIC_ALREADY_EXISTS"


def test_validate_only_creates_nothing(admin):
    name = "conformance-only-validated"
    future = admin.create_topics([NewTopic(name, 1, 1)], validate_only=True)[name]
    assert _code(future) == "NO_ERROR"
    assert name not in admin.list_topics(timeout=10).topics


def test_a_deleted_topic_is_gone_and_its_name_is_free(admin, bootstrap, new_topic):
    topic = new_topic()
    produce_confluent(bootstrap, topic, [Sent(value=b"old")] * 3, "none")
    assert _code(admin.delete_topics([topic])[topic]) == "NO_ERROR"
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics)
    assert _code(admin.delete_topics([topic])[topic]) == "UNKNOWN_TOPIC_OR_PART"
    assert _code(admin.create_topics([NewTopic(topic, 1, 1)])[topic]) == "NO_ERROR"
    wait_until(lambda: topic in admin.list_topics(timeout=10).topics)
    produce_confluent(bootstrap, topic, [Sent(value=b"new")], "none")
    assert [record.value for record in consume_confluent(bootstrap, topic, 1)] == [b"new"]


def test_partitions_grow_and_never_shrink(admin, new_topic):
    topic = new_topic(partitions=2)
    assert _code(admin.create_partitions([NewPartitions(topic, 5)])[topic]) == "NO_ERROR"
    wait_until(lambda: len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == 5)
    assert _code(admin.create_partitions([NewPartitions(topic, 3)])[topic]) == "INVALID_PARTITIONS"


def test_a_setting_is_set_appended_subtracted_and_deleted(admin, new_topic):
    topic = new_topic(cleanup_policy="delete")

    def alter(name, value, operation):
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        return _code(admin.incremental_alter_configs([resource])[resource])

    def value(name):
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return admin.describe_configs([resource])[resource].result(_ERROR_SECONDS)[name].value

    assert alter("retention.ms", "1234567", AlterConfigOpType.SET) == "NO_ERROR"
    wait_until(lambda: value("retention.ms") == "1234567")
    assert alter("cleanup.policy", "compact", AlterConfigOpType.APPEND) == "NO_ERROR"
    wait_until(lambda: value("cleanup.policy") == "delete,compact")
    assert alter("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT) == "NO_ERROR"
    wait_until(lambda: value("cleanup.policy") == "compact")
    assert alter("retention.ms", "", AlterConfigOpType.DELETE) == "NO_ERROR"
    wait_until(lambda: value("retention.ms") == "604800000")
    assert alter("retention.ms", "never", AlterConfigOpType.SET) == "INVALID_CONFIG"


def test_a_brokers_settings_are_described(admin):
    resource = ConfigResource(ResourceType.BROKER, "1")
    settings = admin.describe_configs([resource])[resource].result(_ERROR_SECONDS)
    assert settings["node.id"].value == "1"
    assert settings["log.dirs"].is_read_only


def test_deleted_records_are_no_longer_read(admin, bootstrap, new_topic):
    topic = new_topic()
    produce_confluent(bootstrap, topic, [Sent(value=b"%d" % i) for i in range(100)], "none")
    partition = TopicPartition(topic, 0, 40)
    deleted = admin.delete_records([partition])[partition].result(_ERROR_SECONDS)
    assert deleted.low_watermark == 40
    earliest = TopicPartition(topic, 0)
    found = admin.list_offsets({earliest: OffsetSpec.earliest()})[earliest].result(_ERROR_SECONDS)
    assert found.offset == 40
    beyond = TopicPartition(topic, 0, 1000)
    assert _code(admin.delete_records([beyond])[beyond]) == "OFFSET_OUT_OF_RANGE"


def test_offsets_are_listed_by_every_specification(admin, bootstrap, new_topic):
    topic = new_topic(retention_ms="-1")
    times = [5000, 9000, 7000, 8000]
    for time_ms in times:
        produce_confluent(bootstrap, topic, [Sent(value=b"v", timestamp_ms=time_ms)], "none")

    def offset(specification):
        partition = TopicPartition(topic, 0)
        future = admin.list_offsets({partition: specification})[partition]
        return future.result(_ERROR_SECONDS).offset

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 4
    assert offset(OffsetSpec.max_timestamp()) == 1
    assert offset(OffsetSpec.for_timestamp(5001)) == 1
    assert offset(OffsetSpec.for_timestamp(9001)) in (-1, 4)


def test_kafka_python_creates_alters_describes_and_deletes(python_admin, admin):
    name = "conformance-kafka-python"
    python_admin.create_topics(
        {name: {"num_partitions": 2, "configs": {"retention.ms": "5000000"}}},
        wait_for_metadata=True,
    )
    (described,) = python_admin.describe_topics([name])
    assert len(described["partitions"]) == 2
    python_admin.create_partitions({name: 3})
    wait_until(lambda: len(admin.list_topics(name, timeout=10).topics[name].partitions) == 3)
    python_admin.alter_configs([PythonResource("topic", name, {"retention.ms": "6000000"})])
    wait_until(
        lambda: (
            python_admin.describe_configs([PythonResource("topic", name)])["topic"][name][
                "retention.ms"
            ]["value"]
            == "6000000"
        )
    )
    described = python_admin.describe_topic_partitions([name], response_partition_limit=2)
    assert described["next_cursor"] == {"topic_name": name, "partition_index": 2}
    partition = kafka.TopicPartition(name, 0)
    assert python_admin.list_partition_offsets({partition: -1})[partition].offset == 0
    python_admin.delete_topics([name])
    wait_until(lambda: name not in python_admin.list_topics())


def test_committed_offsets_are_listed_altered_and_deleted(admin, bootstrap, new_topic, new_group):
    topic, group = new_topic(partitions=2), new_group()
    produce_confluent(bootstrap, topic, [Sent(value=b"v")] * 20, "none")
    wanted = [TopicPartition(topic, 0, 7, metadata="by hand"), TopicPartition(topic, 1, 0)]
    request = ConsumerGroupTopicPartitions(group, wanted)
    admin.alter_consumer_group_offsets([request])[group].result(_ERROR_SECONDS)

    def committed():
        query = ConsumerGroupTopicPartitions(group)
        result = admin.list_consumer_group_offsets([query])[group].result(_ERROR_SECONDS)
        return {
            partition.partition: (partition.offset, partition.metadata)
            for partition in result.topic_partitions
        }

    assert committed()[0] == (7, "by hand")
    assert committed()[1][0] == 0
    client = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    errors = client.delete_group_offsets(group, [kafka.TopicPartition(topic, 1)])
    client.close()
    assert [error.errno for error in errors.values()] == [0]
    assert list(committed()) == [0]
    assert group in [
        found.group_id for found in admin.list_consumer_groups().result(_ERROR_SECONDS).valid
    ]
    admin.delete_consumer_groups([group])[group].result(_ERROR_SECONDS)
    assert committed() == {}
    with pytest.raises(KafkaException, match="GROUP_ID_NOT_FOUND"):
        admin.delete_consumer_groups([group])[group].result(_ERROR_SECONDS)


@pytest.mark.java
def test_javas_topics_tool_creates_lists_describes_alters_and_deletes(bootstrap):
    where = ["--bootstrap-server", bootstrap]
    name = ["--topic", "conformance-java"]
    settings = ["--config", "segment.bytes=2097152"]
    assert "Created topic" in run_tool(
        "topics", *where, "--create", *name, "--partitions", "3", *settings
    )
    with pytest.raises(ToolFailedError, match="already exists"):
        run_tool("topics", *where, "--create", *name)
    run_tool("topics", *where, "--alter", *name, "--partitions", "4")
    described = run_tool("topics", *where, "--describe", *name)
    assert "PartitionCount: 4" in described
    assert "segment.bytes=2097152" in described
    assert "conformance-java" in run_tool("topics", *where, "--list").split()
    run_tool("topics", *where, "--delete", *name)
    assert "conformance-java" not in run_tool("topics", *where, "--list").split()


@pytest.mark.java
def test_javas_configs_tool_alters_and_describes(bootstrap, new_topic):
    topic = new_topic()
    entity = ["--bootstrap-server", bootstrap, "--entity-type", "topics", "--entity-name", topic]
    run_tool(
        "configs", *entity, "--alter", "--add-config", "retention.ms=77777,max.message.bytes=9000"
    )
    described = run_tool("configs", *entity, "--describe")
    assert "retention.ms=77777" in described
    assert "max.message.bytes=9000" in described
    run_tool("configs", *entity, "--alter", "--delete-config", "max.message.bytes")
    assert "max.message.bytes" not in run_tool("configs", *entity, "--describe")


@pytest.mark.java
def test_javas_groups_tool_describes_resets_and_deletes(admin, bootstrap, new_topic, new_group):
    topic, group = new_topic(), new_group()
    produce_confluent(bootstrap, topic, [Sent(value=b"v")] * 30, "none")
    request = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 30)])
    admin.alter_consumer_group_offsets([request])[group].result(_ERROR_SECONDS)
    where = ["--bootstrap-server", bootstrap, "--group", group]
    lines = run_tool("groups", *where, "--describe").splitlines()
    row = next(line.split() for line in lines if line.startswith(group))
    assert row[1:6] == [topic, "0", "30", "30", "0"]
    reset = ["--reset-offsets", "--topic", topic, "--shift-by", "-12", "--execute"]
    assert "18" in run_tool("groups", *where, *reset).split()
    lines = run_tool("groups", *where, "--describe").splitlines()
    row = next(line.split() for line in lines if line.startswith(group))
    assert row[3:6] == ["18", "30", "12"]
    assert group in run_tool("groups", "--bootstrap-server", bootstrap, "--list").split()
    assert "successful" in run_tool("groups", *where, "--delete")
    assert group not in run_tool("groups", "--bootstrap-server", bootstrap, "--list").split()


@pytest.mark.java
def test_what_security_needs_is_said_to_be_unsupported(admin, python_admin, bootstrap):
    """Clients look at what is advertised, and say so themselves instead of losing a connection."""
    everything = AclBindingFilter(
        *(ResourceType.ANY, None, ResourcePatternType.ANY, None, None),
        *(AclOperation.ANY, AclPermissionType.ANY),
    )
    assert _code(admin.describe_acls(everything)) == "_UNSUPPORTED_FEATURE"
    with pytest.raises(IncompatibleBrokerVersion):
        python_admin.describe_user_scram_credentials(["ann"])
    with pytest.raises(ToolFailedError, match=r"UnsupportedVersionException.*DESCRIBE_ACLS"):
        run_tool("acls", "--bootstrap-server", bootstrap, "--list")
    assert admin.list_topics(timeout=10).brokers
