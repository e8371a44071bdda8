"""DeleteRecords: moves the start of partitions' logs.

Versions: 0 · 1 as 0 · 2 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker
    from headrace_broker.server.context import RequestContext
    from headrace_broker.server.partition import Partition

API_KEY = ApiKey.DELETE_RECORDS

_NO_LOW_WATERMARK = -1


def handle(
    broker: Broker, context: RequestContext, request: DeleteRecordsRequest
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
                outcome.low_watermark = partition.delete_records(asked.offset)
                moved.append((partition, outcome))
            except ApiError as error:
                _fail(outcome, error)
    # Before the answer: a kill must not bring deleted records back.
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


def _deletable(broker: Broker, topic: str, index: int) -> Partition:
    if topic in INTERNAL_TOPICS:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot delete records of internal topic {topic}"
        )
    partition = broker.replicas.partition(topic, index)
    policy = broker.replicas.effective_config(topic)["cleanup.policy"]
    if policy == ["compact"]:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "records of a topic that is only compacted stay")
    return partition
