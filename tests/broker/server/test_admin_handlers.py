"""The administrative handlers on a real broker, at every version that is advertised."""

import asyncio
import contextlib
import uuid

import pytest

from headrace_broker.metadata.views import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from headrace_broker.protocol.apis import API_TABLE, ApiKey
from headrace_broker.protocol.codec import decode, encode_bytes
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.create_topics import CreateTopicsRequest
from headrace_broker.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace_broker.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace_broker.protocol.messages.describe_cluster import DescribeClusterRequest
from headrace_broker.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from headrace_broker.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    TopicRequest,
)
from headrace_broker.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace_broker.server.broker import Broker
from headrace_broker.server.config.broker_config import parse_config
from headrace_broker.server.network.context import RequestContext
from support.metadata import creatable

NOT_ASKED = -(2**31)


@contextlib.asynccontextmanager
async def _broker(directory, settings=""):
    failures = []
    config = parse_config(
        f"node.id=1\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={directory}\n"
        f"offsets.topic.num.partitions=2\n{settings}"
    )
    broker = Broker(config, on_failure=failures.append)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()
    assert failures == []


async def _ask(broker, key, request, version):
    """Return what a client of `version` reads of the handler's answer."""
    messages = API_TABLE[key]
    context = RequestContext(version, 1, "test", "127.0.0.1", "PLAINTEXT", 1)
    request, _ = decode(messages.request, encode_bytes(request, version), version)
    response = broker.apis[key].handle(broker, context, request)
    if asyncio.iscoroutine(response):
        response = await response
    return decode(messages.response, encode_bytes(response, version), version)[0]


async def _counting_turns(answering):
    """Return the answer, and in how many turns of the event loop others ran before it."""
    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    await asyncio.sleep(0)
    before = turns
    answer = await answering
    counting.cancel()
    return answer, turns - before


def _versions(key):
    return range(API_TABLE[key].min_version, API_TABLE[key].max_version + 1)


async def _create(broker, *topics, version=7):
    request = CreateTopicsRequest(topics=list(topics))
    response = await _ask(broker, ApiKey.CREATE_TOPICS, request, version)
    assert [topic.error_code for topic in response.topics] == [0] * len(topics)


async def _metadata(broker, *names, version=13, **flags):
    flags.setdefault("allow_auto_topic_creation", version < 4)
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], **flags)
    return await _ask(broker, ApiKey.METADATA, request, version)


def test_every_version_of_every_request_creates_shows_and_deletes_a_topic(tmp_path):
    async def run():
        async with _broker(tmp_path) as broker:
            port = broker.listeners[0].port
            for version in _versions(ApiKey.CREATE_TOPICS):
                await _create(broker, creatable(f"t{version}", 2), version=version)
            for version in _versions(ApiKey.METADATA):
                response = await _metadata(broker, "t7", version=version)
                (node,) = response.brokers
                assert (node.node_id, node.host, node.port) == (1, "127.0.0.1", port)
                (topic,) = response.topics
                assert (topic.error_code, topic.name, len(topic.partitions)) == (0, "t7", 2)
                assert topic.partitions[0].leader_id == 1
                assert (topic.topic_id.int != 0) == (version >= 10)
            for version in _versions(ApiKey.DELETE_TOPICS):
                name = f"t{version + 1}"
                request = DeleteTopicsRequest(topic_names=[name])
                if version >= 6:
                    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)])
                response = await _ask(broker, ApiKey.DELETE_TOPICS, request, version)
                assert [(item.name, item.error_code) for item in response.responses] == [(name, 0)]
            assert not broker.metadata.topics

    asyncio.run(run())


def test_a_created_topic_can_be_written_when_the_answer_comes(tmp_path):
    async def run():
        async with _broker(tmp_path) as broker:
            await _create(broker, creatable("t", 3))
            assert [broker.replicas.partition("t", index).leader for index in range(3)] == [1] * 3

    asyncio.run(run())


def test_metadata_of_nothing_and_of_everything_differ_by_version(tmp_path):
    async def run():
        async with _broker(tmp_path) as broker:
            await _create(broker, creatable("a"), creatable("b"))
            assert len((await _metadata(broker, version=0)).topics) == 2
            assert (await _metadata(broker, version=1)).topics == []
            everything = MetadataRequest(topics=None)
            for version in range(1, 14):
                response = await _ask(broker, ApiKey.METADATA, everything, version)
                assert sorted(topic.name for topic in response.topics) == ["a", "b"]

    asyncio.run(run())


def test_metadata_makes_topics_only_where_both_sides_allow_it(tmp_path):
    async def run():
        async with _broker(tmp_path / "on", "num.partitions=3") as broker:
            response = await _metadata(broker, "no")
            assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            names = ("yes", "bad name", "__consumer_offsets")
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            async with asyncio.timeout(60):  # the answer comes at once, the topics behind it
                while True:
                    response = await _metadata(broker, *names, allow_auto_topic_creation=True)
                    codes = {topic.name: topic.error_code for topic in response.topics}
                    if unknown not in codes.values():
                        break
                    await asyncio.sleep(0.01)
            assert codes == {"yes": 0, "bad name": 17, "__consumer_offsets": 0}
            counts = {topic.name: len(topic.partitions) for topic in response.topics}
            assert counts == {"yes": 3, "bad name": 0, "__consumer_offsets": 2}
            assert [topic.is_internal for topic in response.topics] == [False, False, True]
        async with _broker(tmp_path / "off", "auto.create.topics.enable=false") as broker:
            response = await _metadata(broker, "yes", allow_auto_topic_creation=True)
            assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    asyncio.run(run())


def test_metadata_finds_topics_by_id(tmp_path):
    async def run():
        async with _broker(tmp_path) as broker:
            await _create(broker, creatable("t"))
            known = broker.metadata.topics["t"].topic_id
            unknown = uuid.UUID(int=1)
            request = MetadataRequest(
                topics=[
                    MetadataRequestTopic(topic_id=known, name=None),
                    MetadataRequestTopic(topic_id=unknown, name=None),
                ]
            )
            response = await _ask(broker, ApiKey.METADATA, request, 12)
            assert [(topic.name, topic.error_code) for topic in response.topics] == [
                ("t", ErrorCode.NONE),
                (None, ErrorCode.UNKNOWN_TOPIC_ID),
            ]

    asyncio.run(run())


def test_allowed_operations_are_returned_only_when_asked_for(tmp_path):
    async def run():
        async with _broker(tmp_path) as broker:
            await _create(broker, creatable("t"))
            response = await _metadata(broker, "t", version=8)
            assert response.cluster_authorized_operations == NOT_ASKED
            assert response.topics[0].topic_authorized_operations == NOT_ASKED
            response = await _metadata(
                broker,
                "t",
                version=8,
                include_cluster_authorized_operations=True,
                include_topic_authorized_operations=True,
            )
            assert response.cluster_authorized_operations == CLUSTER_OPERATIONS
            assert response.topics[0].topic_authorized_operations == TOPIC_OPERATIONS

    asyncio.run(run())


def test_the_cluster_describes_itself_in_every_version(tmp_path):
    async def run():
        async with _broker(tmp_path) as broker:
            for version in _versions(ApiKey.DESCRIBE_CLUSTER):
                request = DescribeClusterRequest()
                response = await _ask(broker, ApiKey.DESCRIBE_CLUSTER, request, version)
                assert response.cluster_id == broker.cluster_id
                assert response.controller_id == 1
                assert [(item.broker_id, item.is_fenced) for item in response.brokers] == [
                    (1, False)
                ]
            for endpoint_type, code in [
                (2, "MISMATCHED_ENDPOINT_TYPE"),
                (9, "UNSUPPORTED_ENDPOINT_TYPE"),
            ]:
                request = DescribeClusterRequest(endpoint_type=endpoint_type)
                response = await _ask(broker, ApiKey.DESCRIBE_CLUSTER, request, 1)
                assert response.error_code == ErrorCode[code]

    asyncio.run(run())


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100, 0, -7])
def test_pages_of_topics_join_to_the_whole(tmp_path, limit):
    async def run():
        async with _broker(tmp_path) as broker:
            await _create(broker, creatable("a", 3), creatable("b", 1), creatable("c", 4))
            for names in ([], ["c", "a", "none", "b"]):
                found, cursor, pages = [], None, 0
                while True:
                    request = DescribeTopicPartitionsRequest(
                        topics=[TopicRequest(name=name) for name in names],
                        response_partition_limit=limit,
                        cursor=cursor,
                    )
                    page = await _ask(broker, ApiKey.DESCRIBE_TOPIC_PARTITIONS, request, 0)
                    pages += 1
                    indexes = [
                        (topic.name, partition.partition_index)
                        for topic in page.topics
                        for partition in topic.partitions
                    ]
                    assert len(indexes) <= max(limit, 1)
                    found += indexes
                    if page.next_cursor is None:
                        break
                    cursor = DescribeTopicPartitionsRequestCursor(
                        topic_name=page.next_cursor.topic_name,
                        partition_index=page.next_cursor.partition_index,
                    )
                wanted = [("a", 0), ("a", 1), ("a", 2), ("b", 0)] + [("c", n) for n in range(4)]
                assert found == wanted
                assert pages >= len(wanted) / max(limit, 1)

    asyncio.run(run())


def test_unknown_topics_have_their_error_in_a_page(tmp_path):
    async def run():
        async with _broker(tmp_path) as broker:
            request = DescribeTopicPartitionsRequest(
                topics=[TopicRequest(name="none"), TopicRequest(name="bad name")]
            )
            page = await _ask(broker, ApiKey.DESCRIBE_TOPIC_PARTITIONS, request, 0)
            assert {topic.name: topic.error_code for topic in page.topics} == {
                "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
                "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            }

    asyncio.run(run())


def test_configurations_are_described_in_every_version(tmp_path):
    async def run():
        async with _broker(tmp_path, "log.retention.hours=2") as broker:
            await _create(broker, creatable("t"))
            for version in _versions(ApiKey.DESCRIBE_CONFIGS):
                request = DescribeConfigsRequest(
                    resources=[
                        DescribeConfigsResource(
                            resource_type=kind, resource_name=name, configuration_keys=None
                        )
                        for kind, name in [(2, "t"), (4, "1"), (4, "")]
                    ],
                    include_synonyms=True,
                )
                topic, node, default = (
                    await _ask(broker, ApiKey.DESCRIBE_CONFIGS, request, version)
                ).results
                values = {entry.name: entry.value for entry in topic.configs}
                assert values["retention.ms"] == "7200000"
                values = {entry.name: entry.value for entry in node.configs}
                assert values["node.id"] == "1"
                assert values["log.retention.hours"] == "2"
                assert default.configs == []

    asyncio.run(run())


def test_others_are_served_while_the_settings_of_many_topics_are_described(tmp_path):
    """Tools that show a cluster's topics ask for all of them at once, again and again."""

    async def run():
        async with _broker(tmp_path) as broker:
            await _create(broker, creatable("t"))
            request = DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(
                        resource_type=2, resource_name=name, configuration_keys=["retention.ms"]
                    )
                    for name in ["t", *(f"none-{number}" for number in range(999))]
                ]
            )
            answer, turns = await _counting_turns(_ask(broker, ApiKey.DESCRIBE_CONFIGS, request, 4))
            assert turns >= 5
            assert [len(result.configs) for result in answer.results] == [1, *[0] * 999]

    asyncio.run(run())


def test_others_are_served_while_records_of_many_partitions_are_deleted(tmp_path):
    async def run():
        async with _broker(tmp_path) as broker:
            await _create(broker, creatable("t", 2))
            request = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name="t",
                        partitions=[
                            DeleteRecordsPartition(partition_index=index, offset=-1)
                            for index in range(600)
                        ],
                    )
                ],
                timeout_ms=10_000,
            )
            answer, turns = await _counting_turns(_ask(broker, ApiKey.DELETE_RECORDS, request, 2))
            assert turns >= 5
            (topic,) = answer.topics
            assert [(item.partition_index, item.low_watermark) for item in topic.partitions] == [
                *((index, 0) for index in range(2)),
                *((index, -1) for index in range(2, 600)),
            ]

    asyncio.run(run())


def test_records_of_internal_unknown_and_only_compacted_topics_are_not_deleted(tmp_path):
    async def run():
        async with _broker(tmp_path) as broker:
            await broker.controller.ensure_internal_topic("__consumer_offsets")
            await _create(
                broker, creatable("plain"), creatable("compacted", cleanup_policy="compact")
            )
            request = DeleteRecordsRequest(
                topics=[
                    DeleteRecordsTopic(
                        name=name, partitions=[DeleteRecordsPartition(offset=offset)]
                    )
                    for name, offset in [
                        ("plain", -1),
                        ("plain", 1),
                        ("compacted", 0),
                        ("__consumer_offsets", 0),
                        ("none", 0),
                    ]
                ]
            )
            for version in _versions(ApiKey.DELETE_RECORDS):
                response = await _ask(broker, ApiKey.DELETE_RECORDS, request, version)
                outcomes = [topic.partitions[0] for topic in response.topics]
                assert [ErrorCode(item.error_code).name for item in outcomes] == [
                    "NONE",
                    "OFFSET_OUT_OF_RANGE",
                    "POLICY_VIOLATION",
                    "INVALID_TOPIC_EXCEPTION",
                    "UNKNOWN_TOPIC_OR_PARTITION",
                ]
                assert [item.low_watermark for item in outcomes] == [0, -1, -1, -1, -1]

    asyncio.run(run())


def test_topics_settings_and_ids_survive_a_restart(tmp_path):
    async def run():
        async with _broker(tmp_path) as broker:
            await _create(broker, creatable("t", 2, retention_ms="5"))
            before, cluster_id = broker.metadata, broker.cluster_id
        async with _broker(tmp_path) as broker:
            assert list(broker.metadata.topics_by_id) == list(before.topics_by_id)
            after, was = broker.metadata.topics["t"].partitions, before.topics["t"].partitions
            assert [(p.leader, p.replicas) for p in after.values()] == [
                (p.leader, p.replicas) for p in was.values()
            ]
            assert broker.metadata.configs == before.configs
            assert broker.cluster_id == cluster_id
            assert broker.replicas.effective_config("t")["retention.ms"] == 5

    asyncio.run(run())
