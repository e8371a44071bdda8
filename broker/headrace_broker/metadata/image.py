"""The image of the cluster's metadata: the result of replaying the metadata log.

A published image is immutable and shared by every reader; `replay_batch` builds the next one and
copies only what a batch touches, so a reader keeps a consistent view without a lock. The record
formats and what each does are KRaft's (KIP-500, KIP-631); nothing here decides anything.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headrace_broker.metadata.entities import (
    BrokerImage,
    PartitionImage,
    TopicImage,
    broker_from_record,
    merge_partition,
    partition_from_record,
)
from headrace_broker.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from headrace_broker.metadata.settings.resources import (
    ConfigResource,
    broker_resource,
    topic_resource,
)
from headrace_broker.protocol.types import (
    NO_OFFSET,
    LeaderEpoch,
    NodeId,
    Offset,
    PartitionIndex,
    ProducerId,
    TopicId,
)

_FIRST_EPOCH = LeaderEpoch(0)
_FIRST_PRODUCER_ID = ProducerId(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataDelta:
    """What changed between two images, for code that reacts to it.

    Apply `topics_removed` before `topics_changed`: a topic that was deleted and recreated has its
    name in both.
    """

    topics_removed: Mapping[TopicId, TopicImage]
    topics_changed: Mapping[str, frozenset[PartitionIndex]]
    configs_changed: frozenset[ConfigResource]
    brokers_changed: frozenset[NodeId]
    features_changed: bool

    @classmethod
    def from_nothing(cls, image: "MetadataImage") -> "MetadataDelta":
        """Return the delta that leads from the empty image to `image`."""
        return cls(
            topics_removed={},
            topics_changed={
                name: frozenset(topic.partitions) for name, topic in image.topics.items()
            },
            configs_changed=frozenset(image.configs),
            brokers_changed=frozenset(image.brokers),
            features_changed=bool(image.features),
        )

    @classmethod
    def of_topics(cls, changed: Mapping[str, frozenset[PartitionIndex]]) -> "MetadataDelta":
        """Return a change of nothing but these partitions of topics."""
        return cls(
            topics_removed={},
            topics_changed=changed,
            configs_changed=frozenset(),
            brokers_changed=frozenset(),
            features_changed=False,
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to react to."""
        return not (
            self.topics_removed
            or self.topics_changed
            or self.configs_changed
            or self.brokers_changed
            or self.features_changed
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    """The state after all records of the metadata log up to and including `offset`."""

    offset: Offset = NO_OFFSET
    epoch: LeaderEpoch = _FIRST_EPOCH
    brokers: Mapping[NodeId, BrokerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[TopicId, TopicImage] = field(default_factory=dict)
    configs: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    next_producer_id: ProducerId = _FIRST_PRODUCER_ID
    partition_count: int = 0

    def config(self, resource: ConfigResource) -> Mapping[str, str]:
        """Return the dynamic configuration of `resource`, empty where it has none."""
        return self.configs.get(resource, _NO_CONFIG)

    def partition(self, topic: str, index: PartitionIndex) -> PartitionImage | None:
        """Return one partition, or None where the topic or the partition does not exist."""
        image = self.topics.get(topic)
        return None if image is None else image.partitions.get(index)

    def active_brokers(self) -> list[BrokerImage]:
        """Return the brokers that may lead partitions, by id."""
        return sorted(
            (broker for broker in self.brokers.values() if broker.is_active),
            key=lambda broker: broker.node_id,
        )

    def replay(self, record: MetadataRecord) -> "MetadataImage":
        """Return the image after one more record."""
        return self.replay_batch([record], offset=Offset(self.offset + 1), epoch=self.epoch)[0]

    def replay_batch(
        self, records: Iterable[MetadataRecord], *, offset: Offset, epoch: LeaderEpoch
    ) -> "tuple[MetadataImage, MetadataDelta]":
        """Return the image after `records`, the last of which is at `offset`, and the changes.

        Raises IllegalRecordError for a record that no legal history can have at this place.
        """
        builder = _ImageBuilder(self)
        for record in records:
            builder.replay(record)
        return builder.build(offset, epoch)


_NO_CONFIG: Mapping[str, str] = {}


class IllegalRecordError(Exception):
    """The metadata log has a record that contradicts earlier ones: it is corrupt."""


class _ImageBuilder:
    """The next image under construction: copies each mapping at the first change to it."""

    def __init__(self, base: MetadataImage) -> None:
        self._base = base
        self._brokers: dict[NodeId, BrokerImage] = dict(base.brokers)
        self._features: dict[str, int] = dict(base.features)
        self._topics: dict[str, TopicImage] | None = None
        self._by_id: dict[TopicId, TopicImage] = {}
        self._open_partitions: dict[TopicId, dict[PartitionIndex, PartitionImage]] = {}
        self._configs: dict[ConfigResource, dict[str, str]] = {}
        self._next_producer_id = base.next_producer_id
        self._partition_count = base.partition_count
        self._removed: dict[TopicId, TopicImage] = {}
        self._changed: dict[TopicId, set[PartitionIndex]] = {}
        self._brokers_changed: set[NodeId] = set()
        self._features_changed = False

    def replay(self, record: MetadataRecord) -> None:
        """Apply one record."""
        try:
            apply = _REPLAY[type(record)]
        except KeyError:
            raise IllegalRecordError(f"no replay for {type(record).__name__}") from None
        apply(self, record)

    def build(self, offset: Offset, epoch: LeaderEpoch) -> tuple[MetadataImage, MetadataDelta]:
        """Freeze the new image."""
        base = self._base
        topics, by_id = self._build_topics()
        configs = base.configs
        if self._configs:
            merged = {**base.configs, **self._configs}
            configs = {resource: values for resource, values in merged.items() if values}
        delta = MetadataDelta(
            topics_removed=self._removed,
            topics_changed={
                by_id[topic_id].name: frozenset(indexes)
                for topic_id, indexes in self._changed.items()
            },
            configs_changed=frozenset(self._configs),
            brokers_changed=frozenset(self._brokers_changed),
            features_changed=self._features_changed,
        )
        image = MetadataImage(
            offset=offset,
            epoch=epoch,
            brokers=self._brokers,
            topics=topics,
            topics_by_id=by_id,
            configs=configs,
            features=self._features,
            next_producer_id=self._next_producer_id,
            partition_count=self._partition_count,
        )
        return image, delta

    def _build_topics(self) -> tuple[Mapping[str, TopicImage], Mapping[TopicId, TopicImage]]:
        if self._topics is None:
            return self._base.topics, self._base.topics_by_id
        for topic_id, partitions in self._open_partitions.items():
            if topic_id in self._by_id:
                topic = replace(self._by_id[topic_id], partitions=partitions)
                self._by_id[topic_id] = topic
                self._topics[topic.name] = topic
        return self._topics, self._by_id

    def _writable_topics(self) -> dict[str, TopicImage]:
        if self._topics is None:
            self._topics = dict(self._base.topics)
            self._by_id = dict(self._base.topics_by_id)
        return self._topics

    def _writable_partitions(self, topic_id: TopicId) -> dict[PartitionIndex, PartitionImage]:
        self._writable_topics()
        partitions = self._open_partitions.get(topic_id)
        if partitions is None:
            topic = self._by_id.get(topic_id)
            if topic is None:
                raise IllegalRecordError(f"no topic has the id {topic_id}")
            partitions = dict(topic.partitions)
            self._open_partitions[topic_id] = partitions
        return partitions

    def _writable_config(self, resource: ConfigResource) -> dict[str, str]:
        values = self._configs.get(resource)
        if values is None:
            values = dict(self._base.config(resource))
            self._configs[resource] = values
        return values

    def on_topic(self, record: TopicRecord) -> None:
        topics = self._writable_topics()
        topic_id = TopicId(record.topic_id)
        if record.name in topics or topic_id in self._by_id:
            raise IllegalRecordError(f"topic {record.name} ({topic_id}) exists already")
        topic = TopicImage(name=record.name, topic_id=topic_id, partitions={})
        topics[record.name] = topic
        self._by_id[topic_id] = topic
        self._open_partitions[topic_id] = {}
        self._changed[topic_id] = set()

    def on_remove_topic(self, record: RemoveTopicRecord) -> None:
        topics = self._writable_topics()
        topic_id = TopicId(record.topic_id)
        topic = self._by_id.pop(topic_id, None)
        if topic is None:
            raise IllegalRecordError(f"no topic has the id {topic_id}")
        del topics[topic.name]
        partitions = self._open_partitions.pop(topic_id, topic.partitions)
        self._partition_count -= len(partitions)
        self._changed.pop(topic_id, None)
        before = self._base.topics_by_id.get(topic_id)
        if before is not None:
            self._removed[topic_id] = before
        resource = topic_resource(topic.name)
        if self._writable_config(resource):
            self._configs[resource] = {}

    def on_partition(self, record: PartitionRecord) -> None:
        partitions = self._writable_partitions(TopicId(record.topic_id))
        index = PartitionIndex(record.partition_id)
        if index not in partitions:
            self._partition_count += 1
        partitions[index] = partition_from_record(record)
        self._changed.setdefault(TopicId(record.topic_id), set()).add(index)

    def on_partition_change(self, record: PartitionChangeRecord) -> None:
        partitions = self._writable_partitions(TopicId(record.topic_id))
        index = PartitionIndex(record.partition_id)
        before = partitions.get(index)
        if before is None:
            raise IllegalRecordError(f"{record.topic_id} has no partition {index}")
        partitions[index] = merge_partition(before, record)
        self._changed.setdefault(TopicId(record.topic_id), set()).add(index)

    def on_config(self, record: ConfigRecord) -> None:
        values = self._writable_config(ConfigResource(record.resource_type, record.resource_name))
        if record.value is None:
            values.pop(record.name, None)
        else:
            values[record.name] = record.value

    def on_register_broker(self, record: RegisterBrokerRecord) -> None:
        node_id = NodeId(record.broker_id)
        self._brokers[node_id] = broker_from_record(record)
        self._brokers_changed.add(node_id)

    def on_registration_change(self, record: BrokerRegistrationChangeRecord) -> None:
        broker = self._registered(record.broker_id, record.broker_epoch)
        if record.fenced:
            broker = replace(broker, fenced=record.fenced > 0)
        if record.in_controlled_shutdown:
            broker = replace(broker, in_controlled_shutdown=True)
        if record.log_dirs:
            broker = replace(broker, log_dirs=tuple(record.log_dirs))
        self._brokers[broker.node_id] = broker
        self._brokers_changed.add(broker.node_id)

    def on_fence_broker(self, record: FenceBrokerRecord) -> None:
        broker = self._registered(record.id, record.epoch)
        self._brokers[broker.node_id] = replace(broker, fenced=True)
        self._brokers_changed.add(broker.node_id)

    def on_unfence_broker(self, record: UnfenceBrokerRecord) -> None:
        broker = self._registered(record.id, record.epoch)
        self._brokers[broker.node_id] = replace(broker, fenced=False)
        self._brokers_changed.add(broker.node_id)

    def on_unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        broker = self._registered(record.broker_id, record.broker_epoch)
        del self._brokers[broker.node_id]
        self._brokers_changed.add(broker.node_id)
        resource = broker_resource(broker.node_id)
        if self._writable_config(resource):
            self._configs[resource] = {}

    def _registered(self, node_id: int, epoch: int) -> BrokerImage:
        broker = self._brokers.get(NodeId(node_id))
        if broker is None or broker.epoch != epoch:
            raise IllegalRecordError(f"broker {node_id} is not registered with epoch {epoch}")
        return broker

    def on_feature_level(self, record: FeatureLevelRecord) -> None:
        if record.feature_level == 0:
            self._features.pop(record.name, None)
        else:
            self._features[record.name] = record.feature_level
        self._features_changed = True

    def on_producer_ids(self, record: ProducerIdsRecord) -> None:
        if record.next_producer_id < self._next_producer_id:
            raise IllegalRecordError(
                f"producer ids went back from {self._next_producer_id} to {record.next_producer_id}"
            )
        self._next_producer_id = ProducerId(record.next_producer_id)

    def on_nothing(self, record: NoOpRecord) -> None:
        """Keep the image: the record only advances the log's end."""


# The effect of each record: the one table of legal records.
_REPLAY: Mapping[type, Callable[[_ImageBuilder, Any], None]] = {
    TopicRecord: _ImageBuilder.on_topic,
    RemoveTopicRecord: _ImageBuilder.on_remove_topic,
    PartitionRecord: _ImageBuilder.on_partition,
    PartitionChangeRecord: _ImageBuilder.on_partition_change,
    ConfigRecord: _ImageBuilder.on_config,
    RegisterBrokerRecord: _ImageBuilder.on_register_broker,
    BrokerRegistrationChangeRecord: _ImageBuilder.on_registration_change,
    FenceBrokerRecord: _ImageBuilder.on_fence_broker,
    UnfenceBrokerRecord: _ImageBuilder.on_unfence_broker,
    UnregisterBrokerRecord: _ImageBuilder.on_unregister_broker,
    FeatureLevelRecord: _ImageBuilder.on_feature_level,
    ProducerIdsRecord: _ImageBuilder.on_producer_ids,
    NoOpRecord: _ImageBuilder.on_nothing,
}
