"""DescribeTopicPartitions: topics in pages, with eligible leaders.

Versions: 0 (KIP-966).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_broker.metadata.entities import INTERNAL_TOPICS, TopicImage
from headrace_broker.metadata.names import is_valid_topic_name
from headrace_broker.metadata.views import TOPIC_OPERATIONS, ClusterView
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from headrace_broker.protocol.types import PartitionIndex

if TYPE_CHECKING:
    from headrace_broker.server.api.services import WithMetadata
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.DESCRIBE_TOPIC_PARTITIONS

# Kafka's max.request.partition.size.limit.
_PARTITIONS_MAX = 2000


def handle(
    broker: WithMetadata, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Return one page of topics by name; the cursor says where the next page begins."""
    cursor = request.cursor
    names = {topic.name for topic in request.topics}
    if cursor is not None and (
        cursor.partition_index < 0 or (names and cursor.topic_name not in names)
    ):
        return DescribeTopicPartitionsResponse(
            topics=[
                DescribeTopicPartitionsResponseTopic(
                    name=topic.name, error_code=ErrorCode.INVALID_REQUEST
                )
                for topic in request.topics
            ]
        )
    view = ClusterView(broker.metadata, context.listener)
    pages = sorted(names or view.image.topics)
    if cursor is not None:
        pages = [name for name in pages if name >= cursor.topic_name]
    left = max(1, min(request.response_partition_limit, _PARTITIONS_MAX))
    response = DescribeTopicPartitionsResponse()
    for name in pages:
        first = 0
        if cursor is not None and name == cursor.topic_name:
            first = cursor.partition_index
        topic = view.image.topics.get(name)
        if left == 0 or (topic is not None and first + left < len(topic.partitions)):
            response.next_cursor = DescribeTopicPartitionsResponseCursor(
                topic_name=name, partition_index=first + left
            )
        if left == 0:
            break
        described = _missing(name) if topic is None else _topic(view, topic, first, left)
        response.topics.append(described)
        left -= len(described.partitions)
        if response.next_cursor is not None:
            break
    return response


def _missing(name: str) -> DescribeTopicPartitionsResponseTopic:
    code = (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if is_valid_topic_name(name)
        else ErrorCode.INVALID_TOPIC_EXCEPTION
    )
    return DescribeTopicPartitionsResponseTopic(
        error_code=code, name=name, is_internal=name in INTERNAL_TOPICS
    )


def _topic(
    view: ClusterView, topic: TopicImage, first: int, count: int
) -> DescribeTopicPartitionsResponseTopic:
    end = min(first + count, len(topic.partitions))
    partitions = []
    for index in range(first, end):
        partition = topic.partitions[PartitionIndex(index)]
        partitions.append(
            DescribeTopicPartitionsResponsePartition(
                error_code=view.partition_error(partition),
                partition_index=index,
                leader_id=partition.leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                eligible_leader_replicas=list(partition.eligible_leader_replicas),
                last_known_elr=list(partition.last_known_elr),
                offline_replicas=view.offline_replicas(partition),
            )
        )
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=partitions,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
