"""What a change of settings does to partitions at once.

With a lower min.insync.replicas a leader commits with fewer replicas, so an ELR that was right may
no longer be: it is cleared in the same batch (Kafka's ClearElrRecord does so for all). Where
unclean elections become allowed, what has no leader gets one.
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

#: Settings that no broker may have for itself alone.
CLUSTER_WIDE = frozenset({"min.insync.replicas", "unclean.leader.election.enable"})


def settled_partitions(
    image: MetadataImage, records: Sequence[MetadataRecord], settings: BrokerSettings
) -> list[MetadataRecord]:
    """Return `records`, which change settings, and then what they do to partitions."""
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
            # A new partition epoch: a leader that does not know the new minimum yet commits with
            # fewer than we think, so what it asks for on that footing must be refused.
            record = PartitionChangeRecord(
                topic_id=topic.topic_id, partition_id=index, isr=list[int](partition.isr)
            )
        settled += [] if record is None else [record]
    return settled
