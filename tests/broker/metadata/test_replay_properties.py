"""Whatever is asked for: what the responses say is what the records replay into."""

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_broker.metadata.configs.alter_configs import decide_incremental_alter_configs
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.records import decode_record, encode_record
from headrace_broker.metadata.settings.broker_settings import BrokerSettings
from headrace_broker.metadata.settings.resources import ConfigResourceType, topic_resource
from headrace_broker.metadata.topic_growth import decide_create_partitions
from headrace_broker.metadata.topics import decide_create_topics, decide_delete_topics
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace_broker.protocol.messages.create_topics import CreateTopicsRequest
from headrace_broker.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace_broker.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace_broker.protocol.types import NodeId
from support.metadata import POLICY, creatable, image_with_brokers, replayed, seeded_rng

_NAMES = st.sampled_from(["a", "b", "a.b", "a_b", "bad name", "", "c"])
_BROKERS = 3

_CREATE = st.builds(
    lambda topics: CreateTopicsRequest(topics=topics),
    st.lists(
        st.builds(
            creatable,
            _NAMES,
            st.integers(-2, 5),
            st.integers(-2, 4),
            retention_ms=st.sampled_from(["1", "-1", "x"]),
        ),
        min_size=1,
        max_size=3,
    ),
)
_DELETE = st.builds(
    lambda names: DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names]),
    st.lists(_NAMES, min_size=1, max_size=3),
)
_GROW = st.builds(
    lambda name, count: CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=count, assignments=None)]
    ),
    _NAMES,
    st.integers(0, 8),
)
_ALTER = st.builds(
    lambda name, operation, value: IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=ConfigResourceType.TOPIC,
                resource_name=name,
                configs=[
                    AlterableConfig(name="cleanup.policy", config_operation=operation, value=value)
                ],
            )
        ]
    ),
    _NAMES,
    st.integers(0, 4),
    st.sampled_from(["compact", "delete", "delete,compact", "x", "", None]),
)


def _decide(image, request, rng):
    match request:
        case CreateTopicsRequest():
            return decide_create_topics(image, request, POLICY, rng)
        case DeleteTopicsRequest():
            return decide_delete_topics(image, request, POLICY)
        case CreatePartitionsRequest():
            return decide_create_partitions(image, request, POLICY, rng)
    return decide_incremental_alter_configs(image, request, BrokerSettings(node_id=NodeId(1)))


def _check_created(before, after, response):
    for result in response.topics:
        if result.error_code == ErrorCode.NONE:
            topic = after.topics[result.name]
            assert result.name not in before.topics
            assert topic.topic_id == result.topic_id
            assert sorted(topic.partitions) == list(range(result.num_partitions))
            for partition in topic.partitions.values():
                assert len(partition.replicas) == result.replication_factor
            described = {entry.name: entry.value for entry in result.configs}
            for name, value in after.config(topic_resource(result.name)).items():
                assert described[name] == value
        elif result.name not in before.topics:
            times = sum(1 for other in response.topics if other.name == result.name)
            assert times > 1 or result.name not in after.topics


def _check_invariants(image: MetadataImage):
    assert {topic.name: topic for topic in image.topics_by_id.values()} == image.topics
    assert image.partition_count == sum(len(topic.partitions) for topic in image.topics.values())
    for topic in image.topics.values():
        assert sorted(topic.partitions) == list(range(len(topic.partitions)))
        for partition in topic.partitions.values():
            assert set(partition.isr) <= set(partition.replicas)
            assert partition.leader in partition.isr
    for resource in image.configs:
        assert resource.name in image.topics


@settings(deadline=None)
@given(
    requests=st.lists(st.one_of(_CREATE, _DELETE, _GROW, _ALTER), max_size=12),
    seed=st.integers(0, 9999),
)
def test_replaying_the_whole_log_gives_the_live_image(requests, seed):
    rng = seeded_rng(seed)
    start = live = image_with_brokers(_BROKERS)
    log = []
    for request in requests:
        before = live
        decision = _decide(live, request, rng)
        live = replayed(live, list(decision.records))
        log += [encode_record(record) for record in decision.records]
        _check_invariants(live)
        match request:
            case CreateTopicsRequest():
                _check_created(before, live, decision.response)
            case DeleteTopicsRequest():
                for result in decision.response.responses:
                    if result.error_code == ErrorCode.NONE:
                        assert result.name not in live.topics
    assert replayed(start, [decode_record(value) for value in log]) == live
