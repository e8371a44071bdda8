"""The image is what the metadata log's records add up to."""

import uuid

import pytest

from headrace_broker.metadata.image import IllegalRecordError, MetadataImage
from headrace_broker.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    decode_record,
    encode_record,
)
from headrace_broker.metadata.settings.resources import ConfigResourceType, topic_resource
from support.metadata import broker_record, creatable, create, image_of, image_with_brokers


def _replay(image, *records):
    return image.replay_batch(records, offset=image.offset + len(records), epoch=image.epoch)


def test_a_published_image_does_not_change_when_the_next_one_is_built():
    before, _ = create(image_with_brokers(1), creatable("t", 2))
    topic = before.topics["t"]
    change = PartitionChangeRecord(topic_id=topic.topic_id, partition_id=0, leader=-1)
    after, _ = _replay(before, change)
    assert before.topics["t"] is topic
    assert before.topics["t"].partitions[0].leader == 1
    assert after.topics["t"].partitions[0].leader == -1
    assert after.topics_by_id[topic.topic_id] is after.topics["t"]


def test_what_a_batch_does_not_touch_is_shared():
    before, _ = create(image_with_brokers(1), creatable("a"), creatable("b"))
    change = PartitionChangeRecord(topic_id=before.topics["a"].topic_id, partition_id=0, leader=1)
    after, delta = _replay(before, change)
    assert after.topics["b"] is before.topics["b"]
    assert after.configs is before.configs
    assert delta.topics_changed == {"a": frozenset({0})}
    after, _ = _replay(before, NoOpRecord())
    assert after.topics is before.topics


def test_naming_a_leader_begins_a_new_leader_epoch_and_an_isr_change_does_not():
    image, _ = create(image_with_brokers(2), creatable("t", assignments=[[1, 2]]))
    topic_id = image.topics["t"].topic_id
    image, _ = _replay(image, PartitionChangeRecord(topic_id=topic_id, partition_id=0, isr=[1]))
    partition = image.partition("t", 0)
    assert (partition.leader_epoch, partition.partition_epoch, partition.isr) == (0, 1, (1,))
    image, _ = _replay(image, PartitionChangeRecord(topic_id=topic_id, partition_id=0, leader=1))
    partition = image.partition("t", 0)
    assert (partition.leader_epoch, partition.partition_epoch, partition.leader) == (1, 2, 1)


def test_a_removed_topic_takes_its_configuration_along():
    image, _ = create(image_with_brokers(1), creatable("t", 3, retention_ms="5"))
    assert image.config(topic_resource("t")) == {"retention.ms": "5"}
    assert image.partition_count == 3
    topic = image.topics["t"]
    after, delta = _replay(image, RemoveTopicRecord(topic_id=topic.topic_id))
    assert not after.topics
    assert not after.topics_by_id
    assert after.config(topic_resource("t")) == {}
    assert after.partition_count == 0
    assert delta.topics_removed == {topic.topic_id: topic}


def test_a_topic_made_and_removed_in_one_batch_leaves_no_trace():
    topic_id = uuid.UUID(int=5)
    image, delta = _replay(
        MetadataImage(),
        TopicRecord(name="t", topic_id=topic_id),
        RemoveTopicRecord(topic_id=topic_id),
    )
    assert not image.topics
    assert delta.topics_removed == {}
    assert delta.topics_changed == {}


def test_a_name_can_be_used_again_in_the_batch_that_frees_it():
    image, _ = create(image_with_brokers(1), creatable("t"))
    old = image.topics["t"]
    fresh = uuid.UUID(int=9)
    image, delta = _replay(
        image, RemoveTopicRecord(topic_id=old.topic_id), TopicRecord(name="t", topic_id=fresh)
    )
    assert image.topics["t"].topic_id == fresh
    assert list(delta.topics_removed) == [old.topic_id]
    assert list(delta.topics_changed) == ["t"]


def test_a_fenced_broker_is_not_active_until_it_is_unfenced():
    image = image_of(broker_record(1, fenced=True))
    assert image.active_brokers() == []
    image, delta = _replay(
        image, BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, fenced=-1)
    )
    assert [broker.node_id for broker in image.active_brokers()] == [1]
    assert delta.brokers_changed == {1}
    image, _ = _replay(image, FenceBrokerRecord(id=1, epoch=1))
    assert image.active_brokers() == []
    image, _ = _replay(image, UnfenceBrokerRecord(id=1, epoch=1))
    image, _ = _replay(
        image, BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, in_controlled_shutdown=1)
    )
    assert not image.brokers[1].fenced
    assert image.active_brokers() == []
    image, delta = _replay(image, UnregisterBrokerRecord(broker_id=1, broker_epoch=1))
    assert not image.brokers
    assert delta.brokers_changed == {1}


def test_an_emptied_configuration_is_forgotten():
    config = {"resource_type": ConfigResourceType.BROKER, "resource_name": "", "name": "a"}
    image = image_of(ConfigRecord(**config, value="1"))
    assert len(image.configs) == 1
    image, delta = _replay(image, ConfigRecord(**config, value=None))
    assert image.configs == {}
    assert len(delta.configs_changed) == 1


def test_a_feature_at_level_zero_is_gone():
    image = image_of(FeatureLevelRecord(name="metadata.version", feature_level=29))
    assert image.features == {"metadata.version": 29}
    image, _ = _replay(image, FeatureLevelRecord(name="metadata.version", feature_level=0))
    assert image.features == {}


@pytest.mark.parametrize(
    "record",
    [
        RemoveTopicRecord(topic_id=uuid.UUID(int=77)),
        PartitionChangeRecord(topic_id=uuid.UUID(int=77), partition_id=0),
        UnfenceBrokerRecord(id=1, epoch=99),
        ProducerIdsRecord(broker_id=1, next_producer_id=999),
    ],
)
def test_a_record_that_contradicts_history_is_refused(record):
    image = image_of(broker_record(1), ProducerIdsRecord(broker_id=1, next_producer_id=1000))
    with pytest.raises(IllegalRecordError):
        image.replay(record)


def test_every_record_survives_the_log():
    records = [
        broker_record(1, rack="a"),
        TopicRecord(name="t", topic_id=uuid.UUID(int=3)),
        PartitionChangeRecord(topic_id=uuid.UUID(int=3), partition_id=2, isr=[1, 2], leader=2),
        ConfigRecord(resource_type=2, resource_name="t", name="retention.ms", value=None),
        ProducerIdsRecord(broker_id=1, next_producer_id=1000),
    ]
    assert [decode_record(encode_record(record)) for record in records] == records
