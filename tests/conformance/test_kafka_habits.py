"""Small things that other people's suites look at: record errors, nulls, kept settings, creation.

Each holds for Apache Kafka 4.2.1 as well: `HEADRACE_CONFORMANCE_PEER=kafka` runs these against it.
"""

import uuid
from datetime import timedelta

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v9 import request as metadata
from kio.schema.produce.v9 import request as produce

from support.batches import NewRecord, build_batch
from support.processes import wait_until

_SECONDS = 30


def test_produce_names_each_record_that_a_compacted_topic_refuses(connection, new_topic):
    topic = new_topic(cleanup_policy="compact")
    records = [NewRecord(key=key, value=b"v") for key in (b"a", None, b"b", None)]
    data = produce.PartitionProduceData(index=0, records=build_batch(records))
    answer = connection.call(
        produce.ProduceRequest(
            acks=-1,
            timeout=timedelta(seconds=10),
            topic_data=(produce.TopicProduceData(name=topic, partition_data=(data,)),),
        )
    )
    (partition,) = answer.responses[0].partition_responses
    assert partition.error_code is ErrorCode.invalid_record
    assert [item.batch_index for item in partition.record_errors] == [1, 3]
    assert all("key" in item.batch_index_error_message for item in partition.record_errors)
    assert "One or more records" in partition.error_message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log.cleaner.threads", "2"),
        ("num.io.threads", "9"),
        ("num.network.threads", "4"),
        ("num.replica.fetchers", "2"),
        ("background.threads", "11"),
        ("max.connections", "9000"),
        ("max.connection.creation.rate", "1000"),
        ("producer.id.expiration.ms", "86000000"),
        ("log.cleaner.backoff.ms", "14000"),
        ("nobody.knows.this", "x"),
    ],
)
def test_a_dynamic_setting_that_kafka_takes_is_taken_and_kept(admin, name, value):
    resource = _broker(name, value, AlterConfigOpType.SET)
    admin.incremental_alter_configs([resource])[resource].result(_SECONDS)
    try:
        described = admin.describe_configs([resource])[resource].result(_SECONDS)
        wait_until(
            lambda: admin.describe_configs([resource])[resource].result(_SECONDS).get(name),
            _SECONDS,
            name,
        )
        described = admin.describe_configs([resource])[resource].result(_SECONDS)
        assert described[name].value in {value, None}, "Kafka hides what it does not know"
    finally:
        undo = _broker(name, value, AlterConfigOpType.DELETE)
        admin.incremental_alter_configs([undo])[undo].result(_SECONDS)


def _broker(name, value, operation):
    entry = ConfigEntry(name, value, incremental_operation=operation)
    return ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])


def test_metadata_answers_at_once_and_creates_behind(connection, admin):
    name = f"behind-{uuid.uuid4().hex[:8]}"
    try:
        first = _metadata(connection, name)
        assert first.error_code is ErrorCode.unknown_topic_or_partition
        wait_until(
            lambda: _metadata(connection, name).error_code is ErrorCode.none, _SECONDS, "the topic"
        )
    finally:
        admin.delete_topics([name])[name].result(_SECONDS)


def _metadata(connection, name):
    request = metadata.MetadataRequest(
        topics=(metadata.MetadataRequestTopic(name=name),),
        allow_auto_topic_creation=True,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    (topic,) = connection.call(request).topics
    return topic


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_that_was_created_has_no_message(connection, version):
    name = f"nulls-{uuid.uuid4().hex[:8]}"
    kind = load_request_schema(19, version)
    topic_class = _element(kind, "CreatableTopic")
    request = kind(
        topics=(
            topic_class(
                name=name, num_partitions=1, replication_factor=1, assignments=(), configs=()
            ),
        ),
        timeout=timedelta(seconds=10),
        validate_only=True,
    )
    (result,) = connection.call(request).topics
    assert result.error_code is ErrorCode.none
    assert result.error_message is None


def _element(kind, name):
    return getattr(__import__(kind.__module__, fromlist=[name]), name)


@pytest.mark.parametrize("version", range(1, 4))
def test_find_coordinator_says_none_in_so_many_letters(connection, version):
    kind = load_request_schema(10, version)
    wait_until(
        lambda: connection.call(kind(key="g", key_type=0)).error_code is ErrorCode.none,
        _SECONDS,
        "the coordinator",
    )
    assert connection.call(kind(key="g", key_type=0)).error_message == "NONE"


@pytest.mark.parametrize("version", range(1, 5))
def test_described_configs_have_an_empty_message(connection, new_topic, version):
    kind = load_request_schema(32, version)
    resource = _element(kind, "DescribeConfigsResource")(
        resource_type=2, resource_name=new_topic(), configuration_keys=None
    )
    fields = {"resources": (resource,)}
    (result,) = connection.call(kind(**fields)).results
    assert result.error_message == ""
