"""Images to decide on, and a seeded random source."""

import random
import uuid

from headrace_broker.metadata.brokers.liveness import decide_heartbeat
from headrace_broker.metadata.brokers.sessions import BrokerSessions
from headrace_broker.metadata.decision import MetadataDecision
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.partitions import TopicPolicy
from headrace_broker.metadata.records import (
    BrokerEndpoint,
    ConfigRecord,
    MetadataRecord,
    RegisterBrokerRecord,
)
from headrace_broker.metadata.settings.resources import ConfigResourceType
from headrace_broker.metadata.topics import decide_create_topics
from headrace_broker.protocol.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from headrace_broker.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace_broker.protocol.types import NodeId, Offset

POLICY = TopicPolicy(node_id=NodeId(1))


def seeded_rng(seed: int = 7) -> random.Random:
    return random.Random(seed)


def broker_record(
    node_id: int, *, rack: str | None = None, fenced: bool = False
) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=node_id,
        incarnation_id=uuid.UUID(int=node_id),
        broker_epoch=node_id,
        end_points=[BrokerEndpoint(name="PLAINTEXT", host=f"host{node_id}", port=9000 + node_id)],
        rack=rack,
        fenced=fenced,
    )


def cordon_record(node_id: int, value: str | None = "*") -> ConfigRecord:
    """What `cordoned.log.dirs` of a broker becomes in the log."""
    return ConfigRecord(
        resource_type=ConfigResourceType.BROKER,
        resource_name=str(node_id),
        name="cordoned.log.dirs",
        value=value,
    )


def replayed(image: MetadataImage, records: list[MetadataRecord]) -> MetadataImage:
    offset = Offset(image.offset + len(records))
    return image.replay_batch(records, offset=offset, epoch=image.epoch)[0]


def image_of(*records: MetadataRecord) -> MetadataImage:
    return replayed(MetadataImage(), list(records))


def image_with_brokers(count: int) -> MetadataImage:
    return image_of(*(broker_record(node_id) for node_id in range(1, count + 1)))


def creatable(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    *,
    assignments: list[list[int]] | None = None,
    **config: str | None,
) -> CreatableTopic:
    """A topic to create; `config` has `_` for `.`."""
    return CreatableTopic(
        name=name,
        num_partitions=-1 if assignments else partitions,
        replication_factor=-1 if assignments else factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in enumerate(assignments or [])
        ],
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in config.items()
        ],
    )


def create(image, *topics, policy=POLICY, seed=7, validate_only=False):
    """Return the image after creating `topics`, and the results by name."""
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    decision = decide_create_topics(image, request, policy, seeded_rng(seed))
    results = {result.name: result for result in decision.response.topics}
    return replayed(image, list(decision.records)), results


def decide_unfence(
    image: MetadataImage, node_id: int, epoch: int, policy: TopicPolicy
) -> MetadataDecision[BrokerHeartbeatResponse]:
    """Decide what the heartbeat of a broker that has caught up changes: it may serve."""
    request = BrokerHeartbeatRequest(
        broker_id=node_id, broker_epoch=epoch, current_metadata_offset=image.offset
    )
    return decide_heartbeat(image, request, BrokerSessions(timeout_ms=9000), policy, now_ms=0)
