"""DescribeProducers: the producers that partitions of this broker remember (KIP-664).

Versions: 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_broker.metadata.entities import CLUSTER_METADATA_TOPIC
from headrace_broker.metadata.names import is_valid_topic_name
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from headrace_broker.server.partitions.partition import ANY_EPOCH

if TYPE_CHECKING:
    from headrace_broker.server.api.services import WithReplicas
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.DESCRIBE_PRODUCERS


def handle(
    broker: WithReplicas, context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """Describe each partition by itself, as its leader knows it."""
    del context
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    _describe(broker, topic.name, index) for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


def _describe(broker: WithReplicas, topic: str, index: int) -> PartitionResponse:
    try:
        if not is_valid_topic_name(topic) and topic != CLUSTER_METADATA_TOPIC:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic!r} is no topic's name")
        partition = broker.replicas.partition(topic, index)
        partition.check_leader(ANY_EPOCH)
    except ApiError as error:
        return PartitionResponse(
            partition_index=index, error_code=error.code, error_message=error.message
        )
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=producer_id,
                producer_epoch=state.epoch,
                last_sequence=state.last_sequence,
                last_timestamp=state.last_timestamp,
                coordinator_epoch=state.coordinator_epoch,
                current_txn_start_offset=state.txn_first_offset,
            )
            for producer_id, state in partition.log.producers.items()
        ],
    )
