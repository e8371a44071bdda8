"""Decides the life of brokers in the cluster: registration, unfencing, and producer id blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from headrace_broker.metadata.decision import Decision
from headrace_broker.metadata.entities import Endpoint
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
)
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import BrokerEpoch, NodeId, ProducerId

METADATA_VERSION_FEATURE = "metadata.version"

#: 4.2-IV1, the level of the record versions that we write; the least is 3.3-IV3's (Kafka 4's own).
METADATA_VERSION = 29
METADATA_VERSION_MIN = 7

#: Ids per block (Kafka's ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE).
PRODUCER_ID_BLOCK_SIZE = 1000

_UNFENCED = -1
_PRODUCER_ID_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a broker says of itself when it joins. `incarnation_id` is new for each process.

    `was_clean_shutdown` says that its logs hold all that it ever acknowledged.
    """

    node_id: NodeId
    incarnation_id: UUID
    endpoints: Sequence[Endpoint]
    rack: str | None
    log_dirs: Sequence[UUID]
    was_clean_shutdown: bool


def decide_bootstrap(image: MetadataImage) -> Decision[None]:
    """Decide the first records of a new cluster: the level that reading its log requires."""
    if METADATA_VERSION_FEATURE in image.features:
        return Decision(records=[], response=None)
    record = FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=METADATA_VERSION)
    return Decision(records=[record], response=None)


def decide_register_broker(
    image: MetadataImage, registration: Registration
) -> Decision[BrokerEpoch]:
    """Decide that a broker process joins, fenced until it has caught up; answer its epoch.

    The epoch is the offset of the record (KIP-631), so it grows with each registration. After an
    unclean shutdown each partition that it leads begins a new leader epoch: the tail that was lost
    and what is written in its place must not share one (KIP-101, KIP-320).
    """
    known = image.brokers.get(registration.node_id)
    if known is not None and known.incarnation_id == registration.incarnation_id:
        return Decision(records=[], response=known.epoch)
    epoch = BrokerEpoch(image.offset + 1)
    records: list[MetadataRecord] = [
        RegisterBrokerRecord(
            broker_id=registration.node_id,
            incarnation_id=registration.incarnation_id,
            broker_epoch=epoch,
            end_points=[
                BrokerEndpoint(
                    name=endpoint.name,
                    host=endpoint.host,
                    port=endpoint.port,
                    security_protocol=endpoint.security_protocol,
                )
                for endpoint in registration.endpoints
            ],
            features=[
                BrokerFeature(
                    name=METADATA_VERSION_FEATURE,
                    min_supported_version=METADATA_VERSION_MIN,
                    max_supported_version=METADATA_VERSION,
                )
            ],
            rack=registration.rack,
            fenced=True,
            log_dirs=list(registration.log_dirs),
        )
    ]
    if not registration.was_clean_shutdown:
        records += _new_leader_epochs(image, registration.node_id)
    return Decision(records=records, response=epoch)


def _new_leader_epochs(image: MetadataImage, leader: NodeId) -> list[MetadataRecord]:
    return [
        PartitionChangeRecord(topic_id=topic.topic_id, partition_id=index, leader=leader)
        for topic in image.topics.values()
        for index, partition in topic.partitions.items()
        if partition.leader == leader
    ]


def decide_unfence_broker(
    image: MetadataImage, node_id: NodeId, epoch: BrokerEpoch
) -> Decision[None]:
    """Decide that a registered broker may serve; raises ApiError(STALE_BROKER_EPOCH)."""
    broker = image.brokers.get(node_id)
    if broker is None or broker.epoch != epoch:
        raise ApiError(
            ErrorCode.STALE_BROKER_EPOCH, f"broker {node_id} is not registered with epoch {epoch}"
        )
    if not broker.fenced:
        return Decision(records=[], response=None)
    record = BrokerRegistrationChangeRecord(broker_id=node_id, broker_epoch=epoch, fenced=_UNFENCED)
    return Decision(records=[record], response=None)


def decide_allocate_producer_ids(
    image: MetadataImage, node_id: NodeId
) -> Decision[tuple[ProducerId, int]]:
    """Decide a block of producer ids for a broker; answer its first id and its length (KIP-730)."""
    start = image.next_producer_id
    if start > _PRODUCER_ID_MAX - PRODUCER_ID_BLOCK_SIZE:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids of this cluster are used")
    broker = image.brokers.get(node_id)
    record = ProducerIdsRecord(
        broker_id=node_id,
        broker_epoch=-1 if broker is None else broker.epoch,
        next_producer_id=start + PRODUCER_ID_BLOCK_SIZE,
    )
    return Decision(records=[record], response=(start, PRODUCER_ID_BLOCK_SIZE))
