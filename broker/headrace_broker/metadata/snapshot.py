"""The image as the records that restore it, and the way from one image to another (KIP-630)."""

from headrace_broker.metadata.brokers.registration import (
    METADATA_VERSION_FEATURE,
    registration_record,
)
from headrace_broker.metadata.entities import PartitionImage
from headrace_broker.metadata.image import MetadataDelta, MetadataImage
from headrace_broker.metadata.records import (
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    TopicRecord,
)
from headrace_broker.protocol.types import PartitionIndex, TopicId


def snapshot_records(image: MetadataImage) -> list[MetadataRecord]:
    """Return records whose replay from nothing gives `image`; the metadata version comes first."""
    features = sorted(image.features, key=lambda name: (name != METADATA_VERSION_FEATURE, name))
    records: list[MetadataRecord] = [
        FeatureLevelRecord(name=name, feature_level=image.features[name]) for name in features
    ]
    records += [registration_record(broker) for _, broker in sorted(image.brokers.items())]
    for topic in image.topics.values():
        records.append(TopicRecord(name=topic.name, topic_id=topic.topic_id))
        records += [
            _partition_record(topic.topic_id, index, partition)
            for index, partition in topic.partitions.items()
        ]
    records += [
        ConfigRecord(
            resource_type=resource.type, resource_name=resource.name, name=name, value=value
        )
        for resource, values in image.configs.items()
        for name, value in values.items()
    ]
    if image.next_producer_id:
        records.append(ProducerIdsRecord(next_producer_id=image.next_producer_id))
    return records


def delta_between(before: MetadataImage, after: MetadataImage) -> MetadataDelta:
    """Return what changed between two images of one history."""
    return MetadataDelta(
        topics_removed={
            topic_id: topic
            for topic_id, topic in before.topics_by_id.items()
            if topic_id not in after.topics_by_id
        },
        topics_changed={
            topic.name: frozenset(changed)
            for topic_id, topic in after.topics_by_id.items()
            if (changed := _changed_partitions(before, after, topic_id))
            or topic_id not in before.topics_by_id
        },
        configs_changed=frozenset(
            resource
            for resource in before.configs.keys() | after.configs.keys()
            if before.config(resource) != after.config(resource)
        ),
        brokers_changed=frozenset(
            node_id
            for node_id in before.brokers.keys() | after.brokers.keys()
            if before.brokers.get(node_id) != after.brokers.get(node_id)
        ),
        features_changed=before.features != after.features,
    )


def _changed_partitions(
    before: MetadataImage, after: MetadataImage, topic_id: TopicId
) -> list[PartitionIndex]:
    known = before.topics_by_id.get(topic_id)
    return [
        index
        for index, partition in after.topics_by_id[topic_id].partitions.items()
        if known is None or known.partitions.get(index) != partition
    ]


def _partition_record(
    topic_id: TopicId, index: PartitionIndex, partition: PartitionImage
) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=list(partition.replicas),
        isr=list(partition.isr),
        removing_replicas=list(partition.removing_replicas),
        adding_replicas=list(partition.adding_replicas),
        leader=partition.leader,
        leader_recovery_state=partition.leader_recovery_state,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        directories=list(partition.directories),
        eligible_leader_replicas=list(partition.eligible_leader_replicas) or None,
        last_known_elr=list(partition.last_known_elr) or None,
    )
