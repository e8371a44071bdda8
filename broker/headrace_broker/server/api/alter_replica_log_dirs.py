"""AlterReplicaLogDirs: which log directory a replica of this broker should be in (KIP-113).

Versions: 1 as 0 · 2 flexible. Replicas are not moved between directories yet: what is asked for is
checked as Kafka does, a replica that is there already is answered with NONE, and a real move with
INVALID_REQUEST.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from headrace_broker.server.api.services import WithDirectories, WithReplicas

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.ALTER_REPLICA_LOG_DIRS


class Node(WithDirectories, WithReplicas, Protocol):
    """What this handler needs of the node."""


def handle(
    broker: Node, context: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Check what is asked for; each replica has its own outcome."""
    del context
    results: dict[str, AlterReplicaLogDirTopicResult] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            result = results.get(topic.name)
            if result is None:
                result = AlterReplicaLogDirTopicResult(topic_name=topic.name, partitions=[])
                results[topic.name] = result
            result.partitions += [
                AlterReplicaLogDirPartitionResult(
                    partition_index=index,
                    error_code=_outcome(broker, topic.name, index, Path(directory.path)),
                )
                for index in topic.partitions
            ]
    return AlterReplicaLogDirsResponse(results=list(results.values()))


def _outcome(broker: Node, topic: str, index: int, path: Path) -> ErrorCode:
    directories = broker.directories
    if path not in directories.paths:
        return ErrorCode.LOG_DIR_NOT_FOUND
    if path in directories.failed:
        return ErrorCode.KAFKA_STORAGE_ERROR
    try:
        partition = broker.replicas.partition(topic, index)
    except ApiError as error:
        return error.code
    holder = directories.holder(partition.log)
    is_there = holder is not None and holder.path == path
    return ErrorCode.NONE if is_there else ErrorCode.INVALID_REQUEST
