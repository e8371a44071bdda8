"""Metadata: brokers, topics, partitions and their leaders.

Versions: 0 · 1 controller, racks, internal topics, null means all topics · 2 cluster id ·
3 throttle time · 4 auto creation is asked for (KIP-204) · 5 offline replicas (KIP-112) · 6 as 5 ·
7 leader epochs (KIP-320) · 8 authorized operations (KIP-430) · 9 flexible ·
10 topic ids (KIP-516) · 11 no cluster operations (KIP-700) · 12 topics by id ·
13 top-level error (KIP-1102).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace_broker.metadata.entities import INTERNAL_TOPICS, TopicImage
from headrace_broker.metadata.names import is_valid_topic_name
from headrace_broker.metadata.views import CLUSTER_OPERATIONS, TOPIC_OPERATIONS, ClusterView
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace_broker.protocol.schema import ZERO_UUID
from headrace_broker.protocol.types import TopicId
from headrace_broker.server.api.services import (
    WithClusterId,
    WithConfig,
    WithController,
    WithDepartures,
    WithLifecycle,
    WithMetadata,
    WithPeers,
)
from headrace_broker.server.membership.settling import wait_settled

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.METADATA

_NULLABLE_NAME_VERSION = 12


class Node(
    WithClusterId,
    WithConfig,
    WithController,
    WithDepartures,
    WithLifecycle,
    WithMetadata,
    WithPeers,
    Protocol,
):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: RequestContext, request: MetadataRequest
) -> MetadataResponse:
    """Answer from the latest image, for the listener of the client's connection."""
    version = context.api_version
    # Version 0 has no null: there an empty list asks for all topics.
    asked = None if version == 0 and not request.topics else _each_once(request.topics)
    if asked and request.allow_auto_topic_creation:
        _create_behind(broker, asked)
    await wait_settled(broker)
    view = ClusterView(broker.metadata, context.listener)
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=image.node_id, host=endpoint.host, port=endpoint.port, rack=image.rack
            )
            for image, endpoint in view.brokers(also=broker.departures.recent())
        ],
        cluster_id=broker.cluster_id,
        controller_id=view.controller_id(broker.config.node_id),
    )
    if asked is None:
        response.topics = [_topic(view, topic) for topic in view.image.topics.values()]
    else:
        response.topics = [_asked_topic(view, topic, version) for topic in asked]
    if request.include_topic_authorized_operations:
        for topic in response.topics:
            if topic.error_code == ErrorCode.NONE:
                topic.topic_authorized_operations = TOPIC_OPERATIONS
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response


def _each_once(asked: list[MetadataRequestTopic] | None) -> list[MetadataRequestTopic] | None:
    """Return the requested topics without repetitions, as Kafka.

    Otherwise a small request that repeats the name of a large topic had a huge response.
    """
    if asked is None:
        return None
    return list({(topic.name, topic.topic_id): topic for topic in asked}.values())


def _create_behind(broker: Node, asked: list[MetadataRequestTopic]) -> None:
    """Begin to create requested topics that are missing; the client asks again.

    Kafka does not wait either. Otherwise a topic that was just deleted would be recreated in the
    very answer to a client that waits for its deletion.
    """
    missing = [topic.name for topic in asked if topic.name and topic.topic_id == ZERO_UUID]
    missing = [
        name for name in missing if name not in broker.metadata.topics and is_valid_topic_name(name)
    ]
    if missing and broker.config.values["auto.create.topics.enable"]:
        broker.controller.create_behind(missing)


def _asked_topic(
    view: ClusterView, asked: MetadataRequestTopic, version: int
) -> MetadataResponseTopic:
    """Return one topic, requested by name or by id."""
    if asked.topic_id != ZERO_UUID:
        topic = view.image.topics_by_id.get(TopicId(asked.topic_id))
        if topic is not None:
            return _topic(view, topic)
        name = None if version >= _NULLABLE_NAME_VERSION else ""
        return MetadataResponseTopic(
            error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=name, topic_id=asked.topic_id
        )
    name = asked.name or ""
    found = view.image.topics.get(name)
    if found is not None:
        return _topic(view, found)
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not is_valid_topic_name(name):
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    return MetadataResponseTopic(error_code=code, name=name, is_internal=name in INTERNAL_TOPICS)


def _topic(view: ClusterView, topic: TopicImage) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[
            MetadataResponsePartition(
                error_code=view.partition_error(partition),
                partition_index=index,
                leader_id=partition.leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                offline_replicas=view.offline_replicas(partition),
            )
            for index, partition in topic.partitions.items()
        ],
    )
