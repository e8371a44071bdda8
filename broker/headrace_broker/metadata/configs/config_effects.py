"""The immediate effects of a change of settings on partitions.

With a lower min.insync.replicas a leader commits with fewer replicas, so a correct ELR may become
wrong: it is cleared in the same batch (like Kafka's ClearElrRecord, for all). If unclean elections
become allowed, leaderless partitions get a leader.
"""

from collections.abc import Sequence

from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.partition_change import PartitionTarget
from headrace_broker.metadata.partitions import TopicPolicy
from headrace_broker.metadata.records import ConfigRecord, MetadataRecord, PartitionChangeRecord
from headrace_broker.metadata.replication_rules import ReplicationRules, partitions_of
from headrace_broker.metadata.settings.broker_settings import BrokerSettings
from headrace_broker.metadata.settings.resources import ConfigResourceType
from headrace_broker.protocol.types import Offset

#: Settings that must not differ between brokers.
CLUSTER_WIDE = frozenset({"min.insync.replicas", "unclean.leader.election.enable"})


def settled_partitions(
    image: MetadataImage, records: Sequence[MetadataRecord], settings: BrokerSettings
) -> list[MetadataRecord]:
    """Return `records`, which change settings, and then their effects on partitions."""
    concerned = [
        record
        for record in records
        if isinstance(record, ConfigRecord) and record.name in CLUSTER_WIDE
    ]
    if not concerned:
        return list(records)
    every_topic = any(record.resource_type != ConfigResourceType.TOPIC for record in concerned)
    topics = {record.resource_name for record in concerned}
    offset = Offset(image.offset + len(records))
    after, _ = image.replay_batch(records, offset=offset, epoch=image.epoch)
    policy = TopicPolicy(node_id=settings.node_id, static=settings.static)
    rules_before, rules = ReplicationRules(image, policy), ReplicationRules(after, policy)
    settled = list(records)
    for topic, index, partition in partitions_of(after):
        if not every_topic and topic.name not in topics:
            continue
        target = PartitionTarget(election=rules.election(topic.name))
        record = rules.change(topic, index, target)
        if (
            record is None
            and rules.topic(topic.name).min_isr > rules_before.topic(topic.name).min_isr
        ):
            # A new partition epoch: a leader that does not know the new minimum yet may commit with
            # fewer replicas than assumed here, so its requests based on the old minimum must be
            # refused.
            record = PartitionChangeRecord(
                topic_id=topic.topic_id, partition_id=index, isr=list[int](partition.isr)
            )
        settled += [] if record is None else [record]
    return settled
