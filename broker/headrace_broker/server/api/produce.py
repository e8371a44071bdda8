"""Produce: append batches to partitions that this broker leads.

Versions: 3 record batches v2 and transactional id · 4 KAFKA_STORAGE_ERROR · 5 log start offset ·
6 as 5 · 7 zstd · 8 record errors (KIP-467) · 9 flexible · 10 current leader in errors (KIP-951) ·
11 as 10 · 12 implicit partitions in transactions (KIP-890) · 13 topic ids.

The hot path: one dictionary look-up and one append for each partition; no record is looked at.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Protocol

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from headrace_broker.server.api.services import (
    WithClock,
    WithConfig,
    WithReplicas,
    WithVerifier,
)
from headrace_broker.server.membership.leader_hints import HINTED, LeaderHints
from headrace_broker.server.network.slots import CLOSE_CONNECTION, LastAnswer
from headrace_broker.server.partitions.partition import CutOffError
from headrace_broker.server.produce.append import (
    ACKS_NONE,
    TOPIC_IDS_FROM,
    Wait,
    check,
    wait_of,
)
from headrace_broker.server.produce.delayed_produce import DelayedProduce, fail
from headrace_broker.server.transactions.transactional_produce import (
    Admissions,
    TransactionalProduce,
    admitted,
)

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext
    from headrace_broker.server.partitions.partition import Partition

API_KEY = ApiKey.PRODUCE

LEADER_HINTS_FROM = 10


class Node(WithClock, WithConfig, WithReplicas, WithVerifier, Protocol):
    """What this handler needs from the node."""


def handle(
    broker: Node, context: RequestContext, request: ProduceRequest
) -> ProduceResponse | LastAnswer | DelayedProduce | Awaitable[Any] | object | None:
    """Append, and answer as `acks` asks: 0 never, 1 at once, -1 when committed."""
    if request.transactional_id is None:
        return _append(broker, context, request)
    transactional = TransactionalProduce(broker, context.api_version, request)
    by_id = context.api_version >= TOPIC_IDS_FROM
    if transactional.begin(lambda topic, data: _find(broker, topic, data, by_id=by_id)):
        return _append(broker, context, request, transactional.admissions)
    if request.acks == ACKS_NONE:
        return CLOSE_CONNECTION  # no response could carry the coordinator's error
    transactional.wait()
    return transactional.finish(lambda: _append(broker, context, request, transactional.admissions))


def _append(
    broker: Node,
    context: RequestContext,
    request: ProduceRequest,
    admissions: Admissions | None = None,
) -> ProduceResponse | LastAnswer | DelayedProduce | Awaitable[Any] | object | None:
    """Append the admitted data: all of it, unless the request names a transactional id."""
    delayed: DelayedProduce | None = None
    hints: LeaderHints | None = None
    failed = is_cut_off = False
    now_ms = broker.clock.now_ms()
    by_id = context.api_version >= TOPIC_IDS_FROM
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
                verification = None if admissions is None else admitted(admissions, data)
                partition = _find(broker, topic, data, by_id=by_id)
                check(request.acks, partition.topic)
                info = partition.append(_records(data), request.acks, now_ms, verification)
            except ApiError as error:
                failed = True
                is_cut_off |= isinstance(error, CutOffError)
                fail(answer, error)
                if error.code in HINTED and context.api_version >= LEADER_HINTS_FROM:
                    host = broker.replicas.host
                    hints = hints or LeaderHints(host.image, context.listener, host.node_id)
                    leader, epoch = hints.leader_of(
                        topic.topic_id, topic.name, data.index, error.code
                    )
                    answer.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
                continue
            answer.base_offset = info.first_offset
            answer.log_append_time_ms = info.log_append_time_ms
            answer.log_start_offset = info.log_start_offset
            wait = wait_of(partition, request.acks, info)
            if wait is not Wait.NOTHING:
                delayed = delayed or DelayedProduce(context.api_version, context.correlation_id)
                delayed.watch(wait, partition, info.last_offset, answer)
    if request.acks == ACKS_NONE:
        # acks=0 has no response; closing makes the client refresh its metadata, as in Kafka.
        return CLOSE_CONNECTION if failed else None
    response = ProduceResponse(responses=topics)
    if hints is not None:
        response.node_endpoints = [
            NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
            for node_id, host, port, rack in hints.endpoints()
        ]
    if delayed is None or not delayed.is_waiting:
        return LastAnswer(response) if is_cut_off else response
    delayed.response = response
    delayed.delay(broker.replicas.host.purgatory, request.timeout_ms)
    return delayed


def _find(
    broker: Node, topic: TopicProduceData, data: PartitionProduceData, *, by_id: bool
) -> Partition:
    if by_id:
        return broker.replicas.partition_by_id(topic.topic_id, data.index)
    return broker.replicas.partition(topic.name, data.index)


def _records(data: PartitionProduceData) -> bytes | bytearray | memoryview:
    if data.records is None:
        raise ApiError(ErrorCode.INVALID_RECORD, "a partition's records are null")
    return data.records
