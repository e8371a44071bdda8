"""Odd names, keys and cursors, each of which has an error of its own.

Each holds for Apache Kafka 4.2.1 as well: `HEADRACE_CONFORMANCE_PEER=kafka` runs these against it.
"""

import uuid
from datetime import timedelta

import pytest
from kio.schema.create_topics.v7 import request as create_topics
from kio.schema.describe_producers.v0 import request as describe_producers
from kio.schema.describe_topic_partitions.v0 import request as describe_topic_partitions
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
from kio.schema.incremental_alter_configs.v1 import request as incremental_alter_configs
from kio.schema.offset_commit.v8 import request as offset_commit
from kio.schema.offset_delete.v0.request import OffsetDeleteRequest

from support.processes import wait_until

_SECONDS = 30
TOPIC, BROKER = 2, 4
GROUP, TRANSACTION, SHARE = 0, 1, 2
A_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


def _coordinator(connection, key_type, key):
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=(key,))
    (found,) = connection.call(request).coordinators
    return found.error_code


@pytest.mark.parametrize(
    ("key_type", "key"),
    [
        (TRANSACTION, ""),
        (SHARE, f"g:{A_TOPIC_ID}:0"),
        (SHARE, f"with:colons:{A_TOPIC_ID}:0"),
        (SHARE, f"g:{A_TOPIC_ID}==:0"),
        (SHARE, f"g:{A_TOPIC_ID}:-1"),
    ],
)
def test_each_key_has_a_coordinator(connection, key_type, key):
    wait_until(
        lambda: _coordinator(connection, key_type, key) is ErrorCode.none, _SECONDS, "coordinator"
    )


@pytest.mark.parametrize(
    "key",
    [
        *("", "x", "g::0", "g:bad:0", f"g:{A_TOPIC_ID}:x", f"g:{A_TOPIC_ID}:"),
        *(f":{A_TOPIC_ID}:0", f" :{A_TOPIC_ID}:0"),
        *(f"g:{A_TOPIC_ID[:-1]}:0", f"g:{A_TOPIC_ID[:-2]} Q:0"),
    ],
)
def test_a_share_partitions_key_is_checked(connection, key):
    assert _coordinator(connection, SHARE, key) is ErrorCode.invalid_request


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", ErrorCode.invalid_topic_exception),
        ("a b", ErrorCode.invalid_topic_exception),
        ("nobody-has-it", ErrorCode.unknown_topic_or_partition),
    ],
)
def test_producers_of_no_topic_are_not_described(connection, name, code):
    asked = describe_producers.TopicRequest(name=name, partition_indexes=(0,))
    answer = connection.call(describe_producers.DescribeProducersRequest(topics=(asked,)))
    assert answer.topics[0].partitions[0].error_code is code


def test_a_cursor_names_a_topic_of_the_request(connection, new_topic):
    names = sorted(new_topic(2) for _ in range(3))

    def pages(asked, cursor):
        request = describe_topic_partitions.DescribeTopicPartitionsRequest(
            topics=tuple(describe_topic_partitions.TopicRequest(name=name) for name in asked),
            response_partition_limit=100,
            cursor=describe_topic_partitions.Cursor(topic_name=cursor, partition_index=0),
        )
        answer = connection.call(request)
        return [(topic.name, topic.error_code, len(topic.partitions)) for topic in answer.topics]

    bad, good = ErrorCode.invalid_request, ErrorCode.none
    assert pages(names[1:], names[0]) == [(name, bad, 0) for name in names[1:]]
    assert pages(names[:1], names[1]) == [(names[0], bad, 0)]
    assert pages(names, names[1]) == [(name, good, 2) for name in names[1:]]
    listed = pages((), names[0][:-1])
    assert set(names) <= {name for name, _, _ in listed}, "of all topics it need not be one"


def test_a_group_without_a_name_has_no_offsets_to_delete(connection):
    answer = connection.call(OffsetDeleteRequest(group_id="", topics=()))
    assert answer.error_code is ErrorCode.invalid_group_id


def test_the_metadata_log_is_not_created(connection):
    topic = create_topics.CreatableTopic(
        name="__cluster_metadata",
        num_partitions=1,
        replication_factor=1,
        assignments=(),
        configs=(),
    )
    request = create_topics.CreateTopicsRequest(
        topics=(topic,), timeout=timedelta(seconds=10), validate_only=True
    )
    assert connection.call(request).topics[0].error_code is ErrorCode.invalid_request


@pytest.mark.parametrize(
    ("kind", "name", "change", "code"),
    [
        (TOPIC, None, ("nobody.knows", 1, None), ErrorCode.none),
        (TOPIC, None, ("nobody.knows", 0, "1"), ErrorCode.invalid_config),
        (TOPIC, None, ("cleanup.policy", 0, "delete,delete"), ErrorCode.none),
        (TOPIC, "", ("retention.ms", 0, "1"), ErrorCode.invalid_request),
        (BROKER, "1", ("broker.id", 0, "1"), ErrorCode.invalid_request),
        (BROKER, "1", ("broker.id", 1, None), ErrorCode.none),
        (BROKER, "", ("node.id", 0, "1"), ErrorCode.invalid_request),
        (BROKER, "", ("request.timeout.ms", 0, "1"), ErrorCode.invalid_request),
        (BROKER, "77", ("log.retention.ms", 0, "1"), ErrorCode.invalid_request),
    ],
)
def test_changes_of_settings_have_their_errors(connection, new_topic, kind, name, change, code):
    setting, operation, value = change
    entry = incremental_alter_configs.AlterableConfig(
        name=setting, config_operation=operation, value=value
    )
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=kind,
        resource_name=new_topic() if name is None else name,
        configs=(entry,),
    )
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=(resource,), validate_only=True
    )
    assert connection.call(request).responses[0].error_code is code


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ("é" * 4096, ErrorCode.none),
        ("é" * 4097, ErrorCode.offset_metadata_too_large),
        ("😀" * 2048, ErrorCode.none),
        ("😀" * 2048 + "x", ErrorCode.offset_metadata_too_large),
    ],
    ids=["4096", "4097", "4096 of UTF-16", "4097 of UTF-16"],
)
def test_metadata_of_an_offset_is_counted_in_characters(connection, new_topic, metadata, code):
    group = f"group-{uuid.uuid4().hex[:8]}"
    wait_until(
        lambda: _coordinator(connection, GROUP, group) is ErrorCode.none, _SECONDS, "coordinator"
    )
    partition = offset_commit.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=metadata
    )
    topic = offset_commit.OffsetCommitRequestTopic(name=new_topic(), partitions=(partition,))
    request = offset_commit.OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=(topic,)
    )

    def commit():
        return connection.call(request).topics[0].partitions[0].error_code

    busy = {ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator}
    wait_until(lambda: commit() not in busy, _SECONDS, "the group's coordinator")
    assert commit() is code
