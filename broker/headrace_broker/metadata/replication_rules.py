"""The configuration's and the brokers' rules for each partition, for one decision."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from uuid import UUID

from headrace_broker.metadata.entities import PartitionImage, TopicImage
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.layers import broker_layers
from headrace_broker.metadata.partition_change import (
    Election,
    PartitionRules,
    PartitionTarget,
    change_partition,
)
from headrace_broker.metadata.partitions import TopicPolicy
from headrace_broker.metadata.records import PartitionChangeRecord
from headrace_broker.metadata.settings.resources import topic_resource
from headrace_broker.metadata.settings.topic_config import topic_candidates
from headrace_broker.metadata.settings.topic_settings import TOPIC_SETTINGS
from headrace_broker.protocol.types import NodeId, PartitionIndex

_MIN_ISR = TOPIC_SETTINGS["min.insync.replicas"]
_UNCLEAN = TOPIC_SETTINGS["unclean.leader.election.enable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """A topic's settings that affect elections and the ELR."""

    min_isr: int
    unclean_election: bool


class ReplicationRules:
    """Answers for one image which replicas may lead and what a topic requires. One per decision.

    `leaving` brokers count as gone, `coming` ones as active, and log directories in `failed` as
    offline, because the decision's records make them so.
    """

    def __init__(
        self,
        image: MetadataImage,
        policy: TopicPolicy,
        *,
        leaving: NodeId | None = None,
        coming: NodeId | None = None,
        failed: Collection[UUID] = (),
    ) -> None:
        self.image = image
        self._failed = failed
        # The cluster's settings: a single broker's own ones do not count here.
        self._layers = broker_layers(image, policy.node_id, policy.static)[1:]
        self._topics: dict[str, TopicRules] = {}
        active = {node for node, broker in image.brokers.items() if broker.is_active}
        if coming is not None:
            active.add(coming)
        if leaving is not None:
            active.discard(leaving)
        self.active: frozenset[NodeId] = frozenset(active)

    def topic(self, name: str) -> TopicRules:
        """Return the effective settings of one topic."""
        rules = self._topics.get(name)
        if rules is None:
            overrides = self.image.config(topic_resource(name))
            rules = self._topics[name] = TopicRules(
                min_isr=topic_candidates(_MIN_ISR, overrides, self._layers)[0].value,
                unclean_election=topic_candidates(_UNCLEAN, overrides, self._layers)[0].value,
            )
        return rules

    def election(self, topic: str) -> Election:
        """Return the kind of automatic election when a leader is lost."""
        return Election.UNCLEAN if self.topic(topic).unclean_election else Election.ONLINE

    def change(
        self, topic: TopicImage, index: PartitionIndex, target: PartitionTarget
    ) -> PartitionChangeRecord | None:
        """Return the record that applies `target` to one partition, None if it changes nothing.

        A partition with fewer replicas than min.insync.replicas needs all of them, not more
        (Kafka's getTopicEffectiveMinIsr).
        """
        before = topic.partitions[index]
        size = len(before.replicas if target.replicas is None else target.replicas)
        new = set(target.replicas or ()) - {*before.replicas, *target.directories}
        if new:
            brokers = self.image.brokers
            chosen = {node: brokers[node].default_directory for node in new if node in brokers}
            target = replace(target, directories={**target.directories, **chosen})
        places = {**dict(zip(before.replicas, before.directories, strict=False))}
        places |= target.directories
        rules = PartitionRules(
            can_lead=lambda node: node in self.active and self.is_online(node, places.get(node)),
            min_isr=min(self.topic(topic.name).min_isr, size),
        )
        return change_partition(topic.topic_id, index, before, target, rules)

    def is_online(self, node_id: NodeId, directory: UUID | None) -> bool:
        """Whether a broker's log directory is in use, as last reported (KIP-858)."""
        if directory is None:
            return True
        broker = self.image.brokers.get(node_id)
        return directory not in self._failed and (broker is None or broker.has_online(directory))


def partitions_of(
    image: MetadataImage,
) -> Iterator[tuple[TopicImage, PartitionIndex, PartitionImage]]:
    """Yield every partition of the image with its topic and index."""
    for topic in image.topics.values():
        for index, partition in topic.partitions.items():
            yield topic, index, partition
