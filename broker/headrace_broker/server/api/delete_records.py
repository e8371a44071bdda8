"""DeleteRecords: moves the start of partitions' logs, in all live replicas (KIP-107).

Versions: 0 · 1 as 0 · 2 flexible.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from headrace_broker.log.descriptor_shortage import OutOfDescriptorsError
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
from headrace_broker.server.network.delayed import DelayedOperation
from headrace_broker.server.partitions.partition import ANY_EPOCH, not_leader

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from headrace_broker.log.log_directory import LogDirectory
    from headrace_broker.server.network.context import RequestContext
    from headrace_broker.server.partitions.partition import Partition
    from headrace_broker.server.partitions.replica_host import ReplicaHost

    _Asked = tuple[str, int, DeleteRecordsPartitionResult]
    """A topic, the offset before which records go, and the outcome for a partition of it."""
    _Moved = tuple[Partition, DeleteRecordsPartitionResult]

API_KEY = ApiKey.DELETE_RECORDS

_NO_LOW_WATERMARK = -1
_AT_A_TIME: Final = 100


class Node(WithDirectories, WithReplicas, Protocol):
    """What this handler needs from the node."""


class DelayedDeletion(DelayedOperation):
    """Waits until the live replicas have deleted the records, too."""

    __slots__ = ("_host", "_waiting", "response")

    def __init__(
        self, context: RequestContext, response: DeleteRecordsResponse, host: ReplicaHost
    ) -> None:
        super().__init__(context.api_version, context.correlation_id)
        self.response = response
        self._host = host
        self._waiting: list[_Moved] = []

    def watch(self, partition: Partition, outcome: DeleteRecordsPartitionResult) -> None:
        """Wait for the replicas' log starts to reach the outcome's low watermark."""
        if not _is_reached(partition, outcome):
            self._waiting.append((partition, outcome))

    @property
    def is_waiting(self) -> bool:
        """Whether a partition is still pending."""
        return bool(self._waiting)

    def wait(self, timeout_ms: int) -> None:
        """Wait, but no longer than `timeout_ms`."""
        self.delay(self._host.purgatory, timeout_ms)
        self._host.deletions[self] = None

    def check(self) -> None:
        """Answer if no partition is pending any longer."""
        self._waiting = [each for each in self._waiting if not _is_reached(*each)]
        if not self._waiting and self.complete():
            self._finish()

    def expire(self) -> None:
        """Answer at the client's timeout."""
        for _, outcome in self._waiting:
            _fail(outcome, ApiError(ErrorCode.REQUEST_TIMED_OUT))
        self._finish()

    def abandon(self) -> None:
        """Wait no longer: the client is gone."""
        super().abandon()
        self._host.deletions.pop(self, None)

    def _finish(self) -> None:
        self._host.deletions.pop(self, None)
        self.send(self.response)


def _is_reached(partition: Partition, outcome: DeleteRecordsPartitionResult) -> bool:
    """Whether nothing is left to wait for: no live replica, or this broker leads no longer."""
    leading, brokers = partition.leading, partition.host.image.brokers
    if leading is None:
        _fail(outcome, not_leader())
        return True
    return all(
        progress.log_start_offset >= outcome.low_watermark
        for node_id, progress in leading.followers.items()
        if node_id in brokers and not brokers[node_id].fenced
    )


def handle(
    broker: Node, context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse | DelayedDeletion | Awaitable[DeleteRecordsResponse | DelayedDeletion]:
    """Delete up to each offset (-1: the high watermark); each partition has its own outcome."""
    response = DeleteRecordsResponse()
    asked: list[_Asked] = []
    for topic in request.topics:
        result = DeleteRecordsTopicResult(name=topic.name)
        response.topics.append(result)
        for each in topic.partitions:
            outcome = DeleteRecordsPartitionResult(partition_index=each.partition_index)
            result.partitions.append(outcome)
            asked.append((topic.name, each.offset, outcome))
    if len(asked) > _AT_A_TIME:
        return _delete_in_turns(broker, context, request, response, asked)
    return _finish(broker, context, request, response, _delete(broker, asked))


async def _delete_in_turns(
    broker: Node,
    context: RequestContext,
    request: DeleteRecordsRequest,
    response: DeleteRecordsResponse,
    asked: list[_Asked],
) -> DeleteRecordsResponse | DelayedDeletion:
    """Serve others in between: a thousand partitions take some 0.2 s."""
    moved: list[_Moved] = []
    for start in range(0, len(asked), _AT_A_TIME):
        moved += _delete(broker, asked[start : start + _AT_A_TIME])
        await asyncio.sleep(0)
    return _finish(broker, context, request, response, moved)


def _delete(broker: Node, asked: list[_Asked]) -> list[_Moved]:
    """Move the starts of logs; return the partitions where that was possible."""
    moved: list[_Moved] = []
    for topic, offset, outcome in asked:
        try:
            partition = _deletable(broker, topic, outcome.partition_index)
            outcome.low_watermark = _delete_records(partition, offset)
            moved.append((partition, outcome))
        except ApiError as error:
            _fail(outcome, error)
    return moved


def _finish(
    broker: Node,
    context: RequestContext,
    request: DeleteRecordsRequest,
    response: DeleteRecordsResponse,
    moved: list[_Moved],
) -> DeleteRecordsResponse | DelayedDeletion:
    """Make what was deleted durable, and wait for the replicas."""
    # Before the answer, so that a kill cannot bring deleted records back.
    for directory in broker.directories:
        held = [each for each in moved if broker.directories.holder(each[0].log) is directory]
        if held:
            _make_durable(directory, held)
    delayed = DelayedDeletion(context, response, broker.replicas.host)
    for partition, outcome in moved:
        if outcome.error_code == ErrorCode.NONE:
            delayed.watch(partition, outcome)
    if not delayed.is_waiting:
        return response
    delayed.wait(request.timeout_ms)
    return delayed


def _make_durable(directory: LogDirectory, held: list[_Moved]) -> None:
    try:
        directory.checkpoint_log_start_offsets()
    except LogDirectoryFailure as failure:
        for partition, outcome in held:
            _fail(outcome, partition.directory_failed(failure))
    except OutOfDescriptorsError as error:
        for _, outcome in held:
            _fail(outcome, error)


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
