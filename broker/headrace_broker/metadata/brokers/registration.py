"""Decides cluster membership: registration and its end, and blocks of producer ids."""

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
"""The level for ConsumerGroupHeartbeat (KIP-848); a new cluster starts with it."""
SHARE_VERSION_FEATURE = "share.version"
SHARE_VERSION = 1
"""The level for share groups (KIP-932); a new cluster starts with it, like Kafka 4.2's."""
TRANSACTION_VERSION_FEATURE = "transaction.version"
TRANSACTION_VERSION = 2
"""The level that a new cluster starts with (KIP-890, KIP-1022)."""

#: 4.2-IV1, the level of the record versions written here; the minimum is 3.3-IV3 (Kafka 4's own).
METADATA_VERSION = 29
METADATA_VERSION_MIN = 7

#: Ids per block (Kafka's ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE).
PRODUCER_ID_BLOCK_SIZE = 1000

NO_BROKER_EPOCH = BrokerEpoch(-1)

_PRODUCER_ID_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A broker's data when it registers. `incarnation_id` is new for each process.

    `previous_broker_epoch` comes from its last clean shutdown, -1 if there was none: if it equals
    the registered epoch, the logs have everything that the broker ever acknowledged (KIP-966).
    """

    node_id: NodeId
    incarnation_id: UUID
    endpoints: Sequence[Endpoint]
    rack: str | None
    log_dirs: Sequence[UUID]
    previous_broker_epoch: BrokerEpoch = NO_BROKER_EPOCH


def decide_bootstrap(image: MetadataImage) -> MetadataDecision[None]:
    """Decide the first records of a new cluster: its feature levels."""
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
    """Register a broker process, fenced until it has caught up; return its epoch.

    The epoch is the offset of the record (KIP-631), so it grows with each registration. The former
    process with that id is removed as leader and from ISRs. If it did not stop cleanly, it is also
    removed from ELRs (KIP-966), and so is an id that was unregistered, because its disks are
    unknown. The partitions that it led get a new leader epoch: lost records and those written in
    their place must not share one (KIP-101, KIP-320).

    `is_alive`: the former process was heard from recently and is not known to have died. Then this
    raises ApiError(DUPLICATE_BROKER_REGISTRATION), unless that process is about to stop.
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
    """Return the registration record of a broker."""
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
    """Decide that a broker no longer belongs to the cluster, as an administrator requests.

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
    """Return the records that let the next broker with this id start like any other."""
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
    """Allocate a block of producer ids to a broker; return its first id and length (KIP-730)."""
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
