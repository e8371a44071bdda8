"""Produce: append batches to partitions that this broker leads.

Versions: 3 record batches v2 and transactional id · 4 KAFKA_STORAGE_ERROR · 5 log start offset ·
6 as 5 · 7 zstd · 8 record errors (KIP-467) · 9 flexible · 10 current leader in errors (KIP-951) ·
11 as 10 · 12 implicit partitions in transactions (KIP-890) · 13 topic ids.

The hot path: one dictionary look-up and one append for each partition; no record is looked at.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from headrace_broker.server.leader_hints import HINTED, LeaderHints
from headrace_broker.server.pending_answer import PendingAnswer
from headrace_broker.server.slots import CLOSE_CONNECTION

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker
    from headrace_broker.server.context import RequestContext

API_KEY = ApiKey.PRODUCE

ACKS_NONE = 0
ACKS_ALL = -1
LEADER_HINTS_FROM = 10
TOPIC_IDS_FROM = 13


def handle(
    broker: Broker, context: RequestContext, request: ProduceRequest
) -> ProduceResponse | Awaitable[ProduceResponse] | object | None:
    """Append, and answer as `acks` asks: 0 nothing at all, 1 at once, -1 when committed."""
    waiting: PendingAnswer | None = None
    hints: LeaderHints | None = None
    failed = False
    now_ms = broker.clock.now_ms()
    by_id = context.api_version >= TOPIC_IDS_FROM
    replicas = broker.replicas
    topics: list[TopicProduceResponse] = []
    for topic in request.topic_data:
        answers: list[PartitionProduceResponse] = []
        topics.append(
            TopicProduceResponse(
                name=topic.name, topic_id=topic.topic_id, partition_responses=answers
            )
        )
        for data in topic.partition_data:
            answer = PartitionProduceResponse(index=data.index)
            answers.append(answer)
            try:
                partition = (
                    replicas.partition_by_id(topic.topic_id, data.index)
                    if by_id
                    else replicas.partition(topic.name, data.index)
                )
                _check(request, partition.topic)
                info = partition.append(data.records, request.acks, now_ms)  # type: ignore[arg-type]  # null is refused there
            except ApiError as error:
                failed = True
                _fail(answer, error)
                if error.code in HINTED and context.api_version >= LEADER_HINTS_FROM:
                    hints = hints or LeaderHints(replicas.host.image, context.listener)
                    leader, epoch = hints.leader_of(topic.topic_id, topic.name, data.index)
                    answer.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
                continue
            answer.base_offset = info.first_offset
            answer.log_append_time_ms = info.log_append_time_ms
            answer.log_start_offset = info.log_start_offset
            if request.acks == ACKS_ALL:
                if partition.high_watermark <= info.last_offset:
                    waiting = waiting or PendingAnswer(request.timeout_ms)
                    waiting.wait_committed(partition, info.last_offset, answer)
            elif partition.flushing is not None and request.acks:
                waiting = waiting or PendingAnswer(request.timeout_ms)
                waiting.wait_durable(partition, info.last_offset, answer)
    if request.acks == ACKS_NONE:
        # Nobody reads an error of acks=0; closing makes the client fetch metadata, as in Kafka.
        return CLOSE_CONNECTION if failed else None
    response = ProduceResponse(responses=topics)
    if hints is not None:
        response.node_endpoints = [
            NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in hints.endpoints()
        ]
    if waiting is not None:
        return waiting.future(response)
    return response


def _check(request: ProduceRequest, topic: str) -> None:
    if request.acks not in (ACKS_NONE, 1, ACKS_ALL):
        raise ApiError(
            ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {request.acks}; it must be 0, 1 or -1"
        )
    if request.transactional_id is not None:
        raise ApiError(ErrorCode.INVALID_TXN_STATE, "transactions are not supported yet")
    if topic == "__consumer_offsets":
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, "clients cannot write to an internal topic"
        )


def _fail(answer: PartitionProduceResponse, error: ApiError) -> None:
    answer.error_code = error.code
    answer.base_offset = -1
    answer.log_append_time_ms = -1
    answer.log_start_offset = -1
    answer.error_message = error.message
