"""DescribeLogDirs: the log directories of this broker, and how much each replica takes.

Versions: 1 as 0 · 2 flexible · 3 top-level error · 4 total and usable bytes (KIP-827).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from headrace_broker.server.api.services import WithDirectories, WithReplicas

if TYPE_CHECKING:
    from headrace_broker.log.future_log import FutureLog
    from headrace_broker.server.network.context import RequestContext
    from headrace_broker.server.partitions.partition import Partition

API_KEY = ApiKey.DESCRIBE_LOG_DIRS


class Node(WithDirectories, WithReplicas, Protocol):
    """What this handler needs from the node."""


def handle(
    broker: Node, context: RequestContext, request: DescribeLogDirsRequest
) -> DescribeLogDirsResponse:
    """Answer for all partitions (null) or the given ones; skip unknown ones, as in Kafka."""
    del context
    directories = broker.directories
    found = {directory.path: _Result(directory.path) for directory in directories}
    for partition in _asked(broker, request):
        directory = directories.holder(partition.log)
        if directory is not None:
            found[directory.path].add(partition)
        future = broker.replicas.moves.future_of(partition)
        if future is not None and future.target.path in found:
            found[future.target.path].add_future(partition, future)
    failed = [_failed(path) for path in directories.paths if path in directories.failed]
    return DescribeLogDirsResponse(results=[*(each.result() for each in found.values()), *failed])


class _Result:
    """The result for one directory in use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._topics: dict[str, DescribeLogDirsTopic] = {}

    def add(self, partition: Partition) -> None:
        """Add a replica."""
        self._topic(partition).append(
            DescribeLogDirsPartition(
                partition_index=partition.index,
                partition_size=partition.log.size_bytes,
                offset_lag=max(0, partition.high_watermark - partition.log.log_end_offset),
            )
        )

    def add_future(self, partition: Partition, future: FutureLog) -> None:
        """Add a replica that is moving to this directory."""
        self._topic(partition).append(
            DescribeLogDirsPartition(
                partition_index=partition.index,
                partition_size=future.log.size_bytes,
                offset_lag=future.offset_lag,
                is_future_key=True,
            )
        )

    def _topic(self, partition: Partition) -> list[DescribeLogDirsPartition]:
        topic = self._topics.get(partition.topic)
        if topic is None:
            topic = DescribeLogDirsTopic(name=partition.topic, partitions=[])
            self._topics[partition.topic] = topic
        return topic.partitions

    def result(self) -> DescribeLogDirsResult:
        """Return the result, with the space of its file system."""
        try:
            usage = shutil.disk_usage(self._path)
        except OSError:
            return _failed(self._path)
        return DescribeLogDirsResult(
            log_dir=str(self._path),
            topics=list(self._topics.values()),
            total_bytes=usage.total,
            usable_bytes=usage.free,
        )


def _failed(path: Path) -> DescribeLogDirsResult:
    return DescribeLogDirsResult(log_dir=str(path), error_code=ErrorCode.KAFKA_STORAGE_ERROR)


def _asked(broker: Node, request: DescribeLogDirsRequest) -> Iterator[Partition]:
    if request.topics is None:
        yield from broker.replicas
        return
    for topic in request.topics:
        held = broker.replicas.partitions_of(topic.topic)
        for index in topic.partitions:
            if index in held:
                yield held[index]
