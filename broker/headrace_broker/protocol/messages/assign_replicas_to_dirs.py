"""AssignReplicasToDirs (API key 73).

Tell the controller which directories hold a broker's replicas.
"""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import (
    ZERO_UUID,
    Array,
    Int16,
    Int32,
    Int64,
    Message,
    Struct,
    Uuid,
    message,
    struct,
)


@struct
class AssignReplicasToDirsRequestPartitionData(Struct):
    """An element of ``AssignReplicasToDirsRequestTopicData.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0


@struct
class AssignReplicasToDirsRequestTopicData(Struct):
    """An element of ``AssignReplicasToDirsRequestDirectoryData.topics``."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    partitions: Annotated[list[AssignReplicasToDirsRequestPartitionData], Array("0+")] = field(
        default_factory=list
    )


@struct
class AssignReplicasToDirsRequestDirectoryData(Struct):
    """An element of ``AssignReplicasToDirsRequest.directories``."""

    id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    topics: Annotated[list[AssignReplicasToDirsRequestTopicData], Array("0+")] = field(
        default_factory=list
    )


@message(api_key=73, versions="0", flexible="0+")
class AssignReplicasToDirsRequest(Message):
    """Asks to tell the controller which directories hold a broker's replicas."""

    broker_id: Annotated[int, Int32("0+")] = 0
    broker_epoch: Annotated[int, Int64("0+")] = -1
    directories: Annotated[list[AssignReplicasToDirsRequestDirectoryData], Array("0+")] = field(
        default_factory=list
    )


@struct
class AssignReplicasToDirsResponsePartitionData(Struct):
    """An element of ``AssignReplicasToDirsResponseTopicData.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0


@struct
class AssignReplicasToDirsResponseTopicData(Struct):
    """An element of ``AssignReplicasToDirsResponseDirectoryData.topics``."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    partitions: Annotated[list[AssignReplicasToDirsResponsePartitionData], Array("0+")] = field(
        default_factory=list
    )


@struct
class AssignReplicasToDirsResponseDirectoryData(Struct):
    """An element of ``AssignReplicasToDirsResponse.directories``."""

    id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    topics: Annotated[list[AssignReplicasToDirsResponseTopicData], Array("0+")] = field(
        default_factory=list
    )


@message(api_key=73, versions="0", flexible="0+")
class AssignReplicasToDirsResponse(Message):
    """Answers ``AssignReplicasToDirsRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    directories: Annotated[list[AssignReplicasToDirsResponseDirectoryData], Array("0+")] = field(
        default_factory=list
    )
