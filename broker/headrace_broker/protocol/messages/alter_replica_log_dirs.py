"""AlterReplicaLogDirs (API key 34): move replicas between a broker's log directories."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Int16,
    Int32,
    Message,
    String,
    Struct,
    message,
    struct,
)


@struct
class AlterReplicaLogDirTopic(Struct):
    """An element of ``AlterReplicaLogDir.topics``."""

    name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@struct
class AlterReplicaLogDir(Struct):
    """An element of ``AlterReplicaLogDirsRequest.dirs``."""

    path: Annotated[str, String("0+")] = ""
    topics: Annotated[list[AlterReplicaLogDirTopic], Array("0+")] = field(default_factory=list)


@message(api_key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsRequest(Message):
    """Asks to move replicas between a broker's log directories."""

    dirs: Annotated[list[AlterReplicaLogDir], Array("0+")] = field(default_factory=list)


@struct
class AlterReplicaLogDirPartitionResult(Struct):
    """An element of ``AlterReplicaLogDirTopicResult.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0


@struct
class AlterReplicaLogDirTopicResult(Struct):
    """An element of ``AlterReplicaLogDirsResponse.results``."""

    topic_name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[AlterReplicaLogDirPartitionResult], Array("0+")] = field(
        default_factory=list
    )


@message(api_key=34, versions="1-2", flexible="2+")
class AlterReplicaLogDirsResponse(Message):
    """Answers ``AlterReplicaLogDirsRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    results: Annotated[list[AlterReplicaLogDirTopicResult], Array("0+")] = field(
        default_factory=list
    )
