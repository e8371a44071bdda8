"""The balancer's model, from the metadata image and the brokers' measurements."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace_broker.balancer.model import BrokerModel, ClusterModel, PartitionModel
from headrace_broker.metadata.cordons import is_cordoned
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.partition_change import is_reassigning
from headrace_broker.protocol.types import NodeId, PartitionIndex

_Key = tuple[str, PartitionIndex]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """What the image does not contain. Unmeasured values count as zero."""

    size_bytes: Mapping[_Key, int] = field(default_factory=dict)
    bytes_in_per_second: Mapping[_Key, float] = field(default_factory=dict)
    bytes_out_per_second: Mapping[_Key, float] = field(default_factory=dict)


def observe_cluster(
    image: MetadataImage,
    measured: Measurements,
    capacities: Mapping[NodeId, float] | None = None,
) -> ClusterModel:
    """Return the model of the cluster; a moving partition counts with its future replicas."""
    brokers = tuple(
        BrokerModel(
            node_id=node,
            rack=broker.rack,
            is_alive=broker.is_active,
            is_cordoned=is_cordoned(image, node),
            capacity=(capacities or {}).get(node, 1.0),
        )
        for node, broker in sorted(image.brokers.items())
    )
    partitions = tuple(
        PartitionModel(
            topic=name,
            index=index,
            replicas=tuple(
                node for node in partition.replicas if node not in partition.removing_replicas
            ),
            leader=partition.leader,
            isr=partition.isr,
            size_bytes=measured.size_bytes.get((name, index), 0),
            bytes_in_per_second=measured.bytes_in_per_second.get((name, index), 0.0),
            bytes_out_per_second=measured.bytes_out_per_second.get((name, index), 0.0),
            is_reassigning=is_reassigning(partition),
        )
        for name, topic in sorted(image.topics.items())
        for index, partition in sorted(topic.partitions.items())
    )
    return ClusterModel(brokers=brokers, partitions=partitions)
