"""AlterReplicaLogDirs: which log directory a replica of this broker should be in (KIP-113).

Versions: 1 as 0 · 2 flexible. A replica that is in the directory already stays, and any move of it
is cancelled. If this broker has no replica yet, the choice is kept until one is created, and the
answer is REPLICA_NOT_AVAILABLE or UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from headrace_broker.log.checkpoints import TopicPartition
from headrace_broker.log.log_directory import LogDirectory
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
    from headrace_broker.log.log_directories import LogDirectories
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.ALTER_REPLICA_LOG_DIRS

_FILE_NAME_MAX: Final = 255
_ANY_MOVE: Final = UUID(int=0).hex


class Node(WithDirectories, WithReplicas, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: RequestContext, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """Start or cancel the requested moves; each replica has its own outcome."""
    del context
    results: dict[str, AlterReplicaLogDirTopicResult] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            result = results.get(topic.name)
            if result is None:
                result = AlterReplicaLogDirTopicResult(topic_name=topic.name, partitions=[])
                results[topic.name] = result
            for index in topic.partitions:
                code = _ask(broker, TopicPartition(topic.name, index), Path(directory.path))
                result.partitions.append(
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                )
                await asyncio.sleep(0)  # creating a copy's files takes about a millisecond
    return AlterReplicaLogDirsResponse(results=list(results.values()))


def _ask(broker: Node, key: TopicPartition, path: Path) -> ErrorCode:
    """Ask for one replica's move; return its outcome, like ReplicaManager.alterReplicaLogDirs."""
    moves = broker.replicas.moves
    try:
        _check(broker.directories, key, path)
        try:
            partition = broker.replicas.partition(*key)
        except ApiError as error:
            if error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
                moves.choose(key, path)
            raise
        moves.ask(partition, path)
    except ApiError as error:
        if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return ErrorCode.REPLICA_NOT_AVAILABLE
        return error.code
    return ErrorCode.NONE


def _check(directories: LogDirectories, key: TopicPartition, path: Path) -> None:
    if len(LogDirectory.future_name(key, _ANY_MOVE)) > _FILE_NAME_MAX:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, "the topic's name is too long for a copy")
    if path in directories.failed:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the log directory has failed")
    if path not in directories.paths:
        raise ApiError(ErrorCode.LOG_DIR_NOT_FOUND, "log.dirs does not name it")
