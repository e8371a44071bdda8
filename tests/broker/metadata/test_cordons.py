"""A cordoned broker keeps what it has and gets nothing new (KIP-1066)."""

import pytest

from headrace_broker.metadata.auto_creation import WantedTopic, decide_ensure_topic
from headrace_broker.metadata.brokers.registration import decide_unregister_broker
from headrace_broker.metadata.configs.alter_configs import (
    ConfigOperation,
    decide_incremental_alter_configs,
)
from headrace_broker.metadata.cordons import cordoned_brokers, cordoned_directories
from headrace_broker.metadata.internal_topics import decide_grow_internal_topics
from headrace_broker.metadata.reassignments import decide_alter_reassignments
from headrace_broker.metadata.settings.broker_settings import BrokerSettings
from headrace_broker.metadata.settings.resources import ConfigResourceType
from headrace_broker.metadata.topic_growth import decide_create_partitions
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace_broker.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace_broker.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace_broker.protocol.types import NodeId
from support.metadata import (
    POLICY,
    cordon_record,
    creatable,
    create,
    image_with_brokers,
    replayed,
    seeded_rng,
)


def _alter(image, name, value, operation=ConfigOperation.SET):
    entry = AlterableConfig(name="cordoned.log.dirs", config_operation=operation, value=value)
    resource = AlterConfigsResource(
        resource_type=ConfigResourceType.BROKER, resource_name=name, configs=[entry]
    )
    decision = decide_incremental_alter_configs(
        image, IncrementalAlterConfigsRequest(resources=[resource]), BrokerSettings(node_id=1)
    )
    return replayed(image, list(decision.records)), decision.response.responses[0].error_code


def _replicas(image, topic):
    return {node for each in image.topics[topic].partitions.values() for node in each.replicas}


def _reassign(image, topic, replicas):
    partition = ReassignablePartition(partition_index=0, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=topic, partitions=[partition])]
    )
    return decide_alter_reassignments(image, request, POLICY).response.responses[0].partitions[0]


def test_no_new_partition_is_placed_on_a_cordoned_broker_and_what_is_there_stays():
    image, _ = create(image_with_brokers(3), creatable("old", 6, 3))
    image, code = _alter(image, "2", "*")
    assert code == ErrorCode.NONE
    assert cordoned_brokers(image) == {2}
    assert _replicas(image, "old") == {1, 2, 3}
    image, results = create(image, creatable("new", 12, 2), creatable("wide", 1, 3))
    assert _replicas(image, "new") == {1, 3}
    assert results["wide"].error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert "1 more cordoned" in results["wide"].error_message
    grown = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name="new", count=20, assignments=None)]
    )
    decision = decide_create_partitions(image, grown, POLICY, seeded_rng())
    assert all(2 not in record.replicas for record in decision.records)


def test_uncordoned_it_takes_part_again():
    image = replayed(image_with_brokers(2), [cordon_record(2)])
    image, code = _alter(image, "2", None, ConfigOperation.DELETE)
    assert code == ErrorCode.NONE
    image, _ = create(image, creatable("t", 4, 2))
    assert _replicas(image, "t") == {1, 2}


def test_nobody_moves_a_replica_there_by_hand_either():
    image, _ = create(image_with_brokers(3), creatable("t", assignments=[[1, 2]]))
    image = replayed(image, [cordon_record(2), cordon_record(3)])
    assert _reassign(image, "t", [1, 3]).error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert _reassign(image, "t", [2, 1]).error_code == ErrorCode.NONE
    _, results = create(image, creatable("by-hand", assignments=[[1, 3]]))
    assert results["by-hand"].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize(("resource", "value"), [("", "*"), ("2", "*,/a"), ("2", "1,2")])
def test_one_broker_is_cordoned_as_a_whole_or_by_the_paths_of_its_log_directories(resource, value):
    _, code = _alter(image_with_brokers(2), resource, value)
    assert code == ErrorCode.INVALID_CONFIG


def test_cordoned_paths_are_the_brokers_own_matter():
    image, code = _alter(image_with_brokers(2), "2", "/disk/a,/disk/b/")
    assert code == ErrorCode.NONE
    assert cordoned_brokers(image) == frozenset()
    assert cordoned_directories(image, NodeId(2)) == {"/disk/a", "/disk/b"}
    assert cordoned_directories(image, NodeId(1)) == frozenset()
    image, _ = _alter(image, "2", "*")
    assert cordoned_brokers(image) == {2}
    assert cordoned_directories(image, NodeId(2)) == frozenset()


def test_the_clusters_own_topics_do_not_grow_onto_a_cordoned_broker():
    image = replayed(image_with_brokers(3), [cordon_record(3)])
    wanted = WantedTopic(name="__consumer_offsets", num_partitions=2, replication_factor=3)
    image = replayed(image, list(decide_ensure_topic(image, wanted, POLICY, seeded_rng()).records))
    assert _replicas(image, "__consumer_offsets") == {1, 2}
    grow = {"__consumer_offsets": 3}
    assert not decide_grow_internal_topics(image, grow, POLICY).records
    image = replayed(image, [cordon_record(3, None)])
    assert len(decide_grow_internal_topics(image, grow, POLICY).records) == 2


def test_the_next_broker_of_an_unregistered_ones_id_is_not_cordoned():
    image = replayed(image_with_brokers(2), [cordon_record(2)])
    decision = decide_unregister_broker(image, NodeId(2), POLICY)
    assert not replayed(image, list(decision.records)).configs
