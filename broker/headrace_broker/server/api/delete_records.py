"""DeleteRecords: moves the start of partitions' logs.

Versions: 0 · 1 as 0 · 2 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.metadata.entities import INTERNAL_TOPICS
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from headrace_broker.protocol.types import Offset
from headrace_broker.server.api.services import WithDirectories, WithReplicas
from headrace_broker.server.partitions.partition import ANY_EPOCH

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext
    from headrace_broker.server.partitions.partition import Partition

API_KEY = ApiKey.DELETE_RECORDS

_NO_LOW_WATERMARK = -1


class Node(WithDirectories, WithReplicas, Protocol):
    """What this handler needs from the node."""


def handle(
    broker: Node, context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    """Delete up to each offset (-1: the high watermark); each partition has its own outcome."""
    del context
    response = DeleteRecordsResponse()
    moved: list[tuple[Partition, DeleteRecordsPartitionResult]] = []
    for topic in request.topics:
        result = DeleteRecordsTopicResult(name=topic.name)
        response.topics.append(result)
        for asked in topic.partitions:
            outcome = DeleteRecordsPartitionResult(partition_index=asked.partition_index)
            result.partitions.append(outcome)
            try:
                partition = _deletable(broker, topic.name, asked.partition_index)
                outcome.low_watermark = _delete_records(partition, asked.offset)
                moved.append((partition, outcome))
            except ApiError as error:
                _fail(outcome, error)
    # Before the answer, so that a kill cannot bring deleted records back.
    for directory in broker.directories:
        held = [each for each in moved if broker.directories.holder(each[0].log) is directory]
        try:
            if held:
                directory.checkpoint_log_start_offsets()
        except LogDirectoryFailure as failure:
            for partition, outcome in held:
                _fail(outcome, partition.directory_failed(failure))
    return response


def _fail(outcome: DeleteRecordsPartitionResult, error: ApiError) -> None:
    outcome.low_watermark = _NO_LOW_WATERMARK
    outcome.error_code = error.code


def _delete_records(partition: Partition, before: int) -> Offset:
    """Move the log's start to `before` (-1: the high watermark); return the low watermark."""
    partition.check_leader(ANY_EPOCH)
    target = partition.high_watermark if before == -1 else before
    if target < 0 or target > partition.high_watermark:
        raise ApiError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"records up to {target} cannot be deleted: the high watermark is "
            f"{partition.high_watermark}",
        )
    try:
        partition.log.delete_records_before(Offset(target))
    except LogDirectoryFailure as failure:
        raise partition.directory_failed(failure) from failure
    for fetch in partition.follower_fetches.values():
        fetch.changed()
    return Offset(partition.log.log_start_offset)


def _deletable(broker: Node, topic: str, index: int) -> Partition:
    if topic in INTERNAL_TOPICS:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot delete records of internal topic {topic}"
        )
    partition = broker.replicas.partition(topic, index)
    policy = broker.replicas.effective_config(topic)["cleanup.policy"]
    if policy == ["compact"]:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "records of a topic that is only compacted stay")
    return partition
