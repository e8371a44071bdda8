"""Decides who belongs to the cluster: registration and its end, and blocks of producer ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from headrace_broker.metadata.brokers.liveness import broker_leaves
from headrace_broker.metadata.decision import MetadataDecision
from headrace_broker.metadata.entities import BrokerImage, Endpoint
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.partitions import TopicPolicy
from headrace_broker.metadata.records import (
    BrokerEndpoint,
    BrokerFeature,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from headrace_broker.metadata.settings.broker_settings import CORDONED_LOG_DIRS
from headrace_broker.metadata.settings.resources import broker_resource
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import BrokerEpoch, NodeId, ProducerId

METADATA_VERSION_FEATURE = "metadata.version"
GROUP_VERSION_FEATURE = "group.version"
GROUP_VERSION = 1
"""With it, ConsumerGroupHeartbeat is served (KIP-848); a new cluster begins with it."""
SHARE_VERSION_FEATURE = "share.version"
SHARE_VERSION = 1
"""With it, share groups are served (KIP-932); a new cluster begins with it, as Kafka 4.2's."""
TRANSACTION_VERSION_FEATURE = "transaction.version"
TRANSACTION_VERSION = 2
"""The level that a new cluster begins with (KIP-890, KIP-1022)."""

#: 4.2-IV1, the level of the record versions that we write; the least is 3.3-IV3's (Kafka 4's own).
METADATA_VERSION = 29
METADATA_VERSION_MIN = 7

#: Ids per block (Kafka's ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE).
PRODUCER_ID_BLOCK_SIZE = 1000

NO_BROKER_EPOCH = BrokerEpoch(-1)

_PRODUCER_ID_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a broker says of itself when it joins. `incarnation_id` is new for each process.

    `previous_broker_epoch` is what its last clean shutdown left behind, -1 where there was none: if
    it is the epoch that we know, the logs hold all that the broker ever acknowledged (KIP-966).
    """

    node_id: NodeId
    incarnation_id: UUID
    endpoints: Sequence[Endpoint]
    rack: str | None
    log_dirs: Sequence[UUID]
    previous_broker_epoch: BrokerEpoch = NO_BROKER_EPOCH


def decide_bootstrap(image: MetadataImage) -> MetadataDecision[None]:
    """Decide the first records of a new cluster: the levels that it works at."""
    if METADATA_VERSION_FEATURE in image.features:
        return MetadataDecision(records=[], response=None)
    levels = {
        METADATA_VERSION_FEATURE: METADATA_VERSION,
        GROUP_VERSION_FEATURE: GROUP_VERSION,
        SHARE_VERSION_FEATURE: SHARE_VERSION,
        TRANSACTION_VERSION_FEATURE: TRANSACTION_VERSION,
    }
    records = [FeatureLevelRecord(name=name, feature_level=level) for name, level in levels.items()]
    return MetadataDecision(records=list(records), response=None)


def decide_register_broker(
    image: MetadataImage,
    registration: Registration,
    policy: TopicPolicy,
    *,
    is_alive: bool = False,
) -> MetadataDecision[BrokerEpoch]:
    """Decide that a broker process joins, fenced until it has caught up; answer its epoch.

    The epoch is the offset of the record (KIP-631), so it grows with each registration. The former
    process under that id leaves its leaderships and ISRs; if it did not stop cleanly, its ELR
    seats too (KIP-966), and so does an id that was unregistered: nobody knows which disks come with
    it. Whatever it led begins a new leader epoch: the tail that was lost and what is written in its
    place must not share one (KIP-101, KIP-320).

    `is_alive` says that the former process was heard from lately and is not known to have died:
    raises ApiError(DUPLICATE_BROKER_REGISTRATION), unless that one is about to stop.
    """
    known = image.brokers.get(registration.node_id)
    epoch = BrokerEpoch(image.offset + 1)
    if known is not None and known.incarnation_id == registration.incarnation_id:
        return MetadataDecision(records=[], response=known.epoch)
    if known is not None and is_alive and not known.in_controlled_shutdown:
        raise ApiError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"another process is registered as broker {registration.node_id} and was heard from "
            "within the session timeout",
        )
    was_clean = known is not None and registration.previous_broker_epoch == known.epoch
    joining = BrokerImage(
        node_id=registration.node_id,
        epoch=epoch,
        incarnation_id=registration.incarnation_id,
        endpoints=tuple(registration.endpoints),
        rack=registration.rack,
        fenced=True,
        log_dirs=tuple(registration.log_dirs),
    )
    records: list[MetadataRecord] = [
        registration_record(joining),
        *broker_leaves(image, registration.node_id, policy, lost_records=not was_clean),
    ]
    return MetadataDecision(records=records, response=epoch)


def registration_record(broker: BrokerImage) -> RegisterBrokerRecord:
    """Return the record that makes a broker what it is."""
    return RegisterBrokerRecord(
        broker_id=broker.node_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=[
            BrokerEndpoint(
                name=endpoint.name,
                host=endpoint.host,
                port=endpoint.port,
                security_protocol=endpoint.security_protocol,
            )
            for endpoint in broker.endpoints
        ],
        features=[
            BrokerFeature(
                name=METADATA_VERSION_FEATURE,
                min_supported_version=METADATA_VERSION_MIN,
                max_supported_version=METADATA_VERSION,
            )
        ],
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=list(broker.log_dirs),
    )


def decide_unregister_broker(
    image: MetadataImage, node_id: NodeId, policy: TopicPolicy
) -> MetadataDecision[None]:
    """Decide that a broker no longer belongs to the cluster, as an operator says.

    Its replicas stay assigned to it until they are moved. Raises
    ApiError(BROKER_ID_NOT_REGISTERED).
    """
    broker = image.brokers.get(node_id)
    if broker is None:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {node_id} not found.")
    records = [
        *broker_leaves(image, node_id, policy),
        UnregisterBrokerRecord(broker_id=node_id, broker_epoch=broker.epoch),
        *_uncordoning(image, node_id),
    ]
    return MetadataDecision(records=records, response=None)


def _uncordoning(image: MetadataImage, node_id: NodeId) -> list[MetadataRecord]:
    """Return what lets the next broker of this id begin like any other."""
    resource = broker_resource(node_id)
    if CORDONED_LOG_DIRS not in image.config(resource):
        return []
    return [
        ConfigRecord(
            resource_type=resource.type,
            resource_name=resource.name,
            name=CORDONED_LOG_DIRS,
            value=None,
        )
    ]


def decide_allocate_producer_ids(
    image: MetadataImage, node_id: NodeId
) -> MetadataDecision[tuple[ProducerId, int]]:
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
    return MetadataDecision(records=[record], response=(start, PRODUCER_ID_BLOCK_SIZE))
