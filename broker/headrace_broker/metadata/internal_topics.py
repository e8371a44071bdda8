"""Decides how the internal topics grow with the cluster.

The first group creates `__consumer_offsets` when there may be only one broker, with as many
replicas as there are brokers. When more brokers have joined, the topic gets its full replication
factor; otherwise the loss of one broker would take every group with it.
"""

from collections import Counter
from collections.abc import Mapping

from headrace_broker.metadata.cordons import placeable_brokers
from headrace_broker.metadata.decision import MetadataDecision
from headrace_broker.metadata.entities import PartitionImage, TopicImage
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.partition_change import is_reassigning, without
from headrace_broker.metadata.partitions import TopicPolicy
from headrace_broker.metadata.placement import preferred_leader_counts, replica_counts
from headrace_broker.metadata.reassignments import reassignment_target
from headrace_broker.metadata.records import MetadataRecord
from headrace_broker.metadata.replication_rules import ReplicationRules
from headrace_broker.protocol.types import NodeId


def decide_grow_internal_topics(
    image: MetadataImage, factors: Mapping[str, int], policy: TopicPolicy
) -> MetadataDecision[int]:
    """Add replicas to topics that have fewer than in `factors`; return how many were changed.

    New replicas go to active brokers, into racks without a replica, then to the emptiest brokers.
    """
    growing = [
        (topic, factor)
        for name, factor in factors.items()
        if (topic := image.topics.get(name)) is not None and _is_small(image, topic, factor)
    ]
    if not growing:
        return MetadataDecision(records=[], response=0)
    rules = ReplicationRules(image, policy)
    replicas, firsts = replica_counts(image), preferred_leader_counts(image)
    records: list[MetadataRecord] = []
    for topic, factor in growing:
        for index, partition in sorted(topic.partitions.items()):
            wanted = _wanted(image, partition, factor)
            if len(partition.replicas) >= wanted or is_reassigning(partition):
                continue
            grown = _grown(image, partition, wanted, replicas)
            # All partitions began on the only broker at that time: spread the leaders, too.
            firsts[grown[0]] -= 1
            first = min(grown, key=lambda node: (firsts[node], node))
            firsts[first] += 1
            target = [first, *without(grown, [first])]
            record = rules.change(topic, index, reassignment_target(partition, target))
            records += [] if record is None else [record]
    return MetadataDecision(records=records, response=len(records))


def _is_small(image: MetadataImage, topic: TopicImage, factor: int) -> bool:
    return any(
        len(partition.replicas) < _wanted(image, partition, factor)
        for partition in topic.partitions.values()
    )


def _wanted(image: MetadataImage, partition: PartitionImage, factor: int) -> int:
    able = {broker.node_id for broker in placeable_brokers(image)}
    return min(factor, len(able.union(partition.replicas)))


def _grown(
    image: MetadataImage, partition: PartitionImage, wanted: int, counts: Counter[NodeId]
) -> list[NodeId]:
    replicas = list(partition.replicas)
    while len(replicas) < wanted:
        racks = {image.brokers[node].rack for node in replicas if node in image.brokers}
        chosen = min(
            (broker for broker in placeable_brokers(image) if broker.node_id not in replicas),
            key=lambda broker: (
                broker.rack is not None and broker.rack in racks,
                counts[broker.node_id],
                broker.node_id,
            ),
            default=None,
        )
        if chosen is None:
            break
        replicas.append(chosen.node_id)
        counts[chosen.node_id] += 1
    return replicas
