"""ListOffsets: the offset at a time, answered from memory for the log's ends.

Versions: 1 one offset for each partition · 2 isolation level · 3 as 2 · 4 leader epoch (KIP-320) ·
5 OFFSET_NOT_AVAILABLE · 6 flexible · 7 max timestamp (KIP-734) · 8 earliest local (KIP-405) ·
9 latest tiered (KIP-1005) · 10 timeout (KIP-1075) · 11 earliest pending upload (KIP-1023).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, DecodeError, ErrorCode
from headrace_broker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from headrace_broker.server.api.services import WithReplicas
    from headrace_broker.server.network.context import RequestContext
    from headrace_broker.server.partitions.partition import Partition

    _Lookup = tuple[str, ListOffsetsPartition, ListOffsetsPartitionResponse]

API_KEY = ApiKey.LIST_OFFSETS

LEADER_EPOCH_FROM = 4
NOT_AVAILABLE_FROM = 5

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
_NEVER: Final = 1 << 15


# The first version that has each of these; earlier ones refuse it.
_SINCE: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


def handle(
    broker: WithReplicas, context: RequestContext, request: ListOffsetsRequest
) -> ListOffsetsResponse | Awaitable[ListOffsetsResponse]:
    """Answer each partition by itself; one that is named again is refused, as in Kafka."""
    named = Counter(
        (topic.name, asked.partition_index)
        for topic in request.topics
        for asked in topic.partitions
    )
    response = ListOffsetsResponse()
    lookups: list[_Lookup] = []
    for topic in request.topics:
        answers: list[ListOffsetsPartitionResponse] = []
        response.topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
        for asked in topic.partitions:
            times = named.pop((topic.name, asked.partition_index), 0)
            if not times:
                continue  # refused where it was named first
            answer = ListOffsetsPartitionResponse(
                partition_index=asked.partition_index, timestamp=-1, offset=-1, leader_epoch=-1
            )
            answers.append(answer)
            if times > 1:
                answer.error_code = ErrorCode.INVALID_REQUEST
            else:
                lookups.append((topic.name, asked, answer))
    if sum(_reads_records(asked) for _, asked, _ in lookups) > 1:
        return _answer_in_turns(broker, context, request.isolation_level, lookups, response)
    for lookup in lookups:
        _answer(broker, context, request.isolation_level, *lookup)
    return response


def _reads_records(asked: ListOffsetsPartition) -> bool:
    return asked.timestamp >= 0 or asked.timestamp == MAX_TIMESTAMP


async def _answer_in_turns(
    broker: WithReplicas,
    context: RequestContext,
    isolation: int,
    lookups: list[_Lookup],
    response: ListOffsetsResponse,
) -> ListOffsetsResponse:
    """Serve others between two searches, as each may unpack a batch of 64 MiB."""
    for lookup in lookups:
        _answer(broker, context, isolation, *lookup)
        await asyncio.sleep(0)
    return response


def _answer(
    broker: WithReplicas,
    context: RequestContext,
    isolation: int,
    topic: str,
    asked: ListOffsetsPartition,
    answer: ListOffsetsPartitionResponse,
) -> None:
    try:
        if asked.timestamp < 0 and context.api_version < _SINCE.get(asked.timestamp, _NEVER):
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"timestamp {asked.timestamp} is none of version {context.api_version}",
            )
        partition = broker.replicas.partition(topic, asked.partition_index)
        partition.check_leader(asked.current_leader_epoch)
        _look_up(partition, asked, isolation, answer)
    except ApiError as error:
        answer.error_code = error.code
        if (
            error.code == ErrorCode.OFFSET_NOT_AVAILABLE
            and context.api_version < NOT_AVAILABLE_FROM
        ):
            answer.error_code = ErrorCode.LEADER_NOT_AVAILABLE
    except DecodeError:
        # The leader wrote that batch as it is; the client did nothing wrong, and can go on.
        answer.error_code = ErrorCode.CORRUPT_MESSAGE
    if context.api_version < LEADER_EPOCH_FROM:
        answer.leader_epoch = -1


def _look_up(
    partition: Partition,
    asked: ListOffsetsPartition,
    isolation: int,
    answer: ListOffsetsPartitionResponse,
) -> None:
    log = partition.log
    timestamp = asked.timestamp
    leading = partition.leading
    # A new leader's high watermark may be behind the end that the former leader returned: going
    # backwards would make consumers read records twice (KIP-207).
    is_behind = leading is not None and partition.high_watermark < leading.epoch_start_offset
    if timestamp == LATEST:
        if is_behind:
            raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)
        answer.offset = partition.readable_end(isolation)
        answer.leader_epoch = partition.leader_epoch
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        answer.offset = log.log_start_offset
        answer.leader_epoch = log.leader_epochs.epoch_for_offset(log.log_start_offset)
    elif timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return  # nothing is tiered: Kafka too answers -1 with remote storage off
    else:
        found = partition.find_timestamp(None if timestamp == MAX_TIMESTAMP else timestamp)
        if found is not None and found[0] < partition.readable_end(isolation):
            answer.offset, answer.timestamp, answer.leader_epoch = found
        elif is_behind:
            raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)
