"""FetchSnapshot (API key 59): read a piece of a snapshot of the metadata log."""

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
    Nested,
    Records,
    String,
    Struct,
    UInt16,
    Uuid,
    message,
    struct,
)


@struct
class FetchSnapshotRequestSnapshotId(Struct):
    """The value of ``FetchSnapshotRequestPartitionSnapshot.snapshot_id``."""

    end_offset: Annotated[int, Int64("0+")] = 0
    epoch: Annotated[int, Int32("0+")] = 0


@struct
class FetchSnapshotRequestPartitionSnapshot(Struct):
    """An element of ``FetchSnapshotRequestTopicSnapshot.partitions``."""

    partition: Annotated[int, Int32("0+")] = 0
    current_leader_epoch: Annotated[int, Int32("0+")] = 0
    snapshot_id: Annotated[FetchSnapshotRequestSnapshotId, Nested("0+")] = field(
        default_factory=FetchSnapshotRequestSnapshotId
    )
    position: Annotated[int, Int64("0+")] = 0
    replica_directory_id: Annotated[UUID, Uuid("1+", tag=0, ignorable=True)] = ZERO_UUID


@struct
class FetchSnapshotRequestTopicSnapshot(Struct):
    """An element of ``FetchSnapshotRequest.topics``."""

    name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[FetchSnapshotRequestPartitionSnapshot], Array("0+")] = field(
        default_factory=list
    )


@message(api_key=59, versions="0-1", flexible="0+")
class FetchSnapshotRequest(Message):
    """Asks to read a piece of a snapshot of the metadata log."""

    cluster_id: Annotated[str | None, String("0+", nullable="0+", tag=0)] = None
    replica_id: Annotated[int, Int32("0+")] = -1
    max_bytes: Annotated[int, Int32("0+")] = 2147483647
    topics: Annotated[list[FetchSnapshotRequestTopicSnapshot], Array("0+")] = field(
        default_factory=list
    )


@struct
class FetchSnapshotResponseSnapshotId(Struct):
    """The value of ``FetchSnapshotResponsePartitionSnapshot.snapshot_id``."""

    end_offset: Annotated[int, Int64("0+")] = 0
    epoch: Annotated[int, Int32("0+")] = 0


@struct
class LeaderIdAndEpoch(Struct):
    """The value of ``FetchSnapshotResponsePartitionSnapshot.current_leader``."""

    leader_id: Annotated[int, Int32("0+")] = 0
    leader_epoch: Annotated[int, Int32("0+")] = 0


@struct
class FetchSnapshotResponsePartitionSnapshot(Struct):
    """An element of ``FetchSnapshotResponseTopicSnapshot.partitions``."""

    index: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    snapshot_id: Annotated[FetchSnapshotResponseSnapshotId, Nested("0+")] = field(
        default_factory=FetchSnapshotResponseSnapshotId
    )
    current_leader: Annotated[LeaderIdAndEpoch, Nested("0+", tag=0)] = field(
        default_factory=LeaderIdAndEpoch
    )
    size: Annotated[int, Int64("0+")] = 0
    position: Annotated[int, Int64("0+")] = 0
    unaligned_records: Annotated[bytes | memoryview, Records("0+")] = b""


@struct
class FetchSnapshotResponseTopicSnapshot(Struct):
    """An element of ``FetchSnapshotResponse.topics``."""

    name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[FetchSnapshotResponsePartitionSnapshot], Array("0+")] = field(
        default_factory=list
    )


@struct
class NodeEndpoint(Struct):
    """An element of ``FetchSnapshotResponse.node_endpoints``."""

    node_id: Annotated[int, Int32("1+")] = 0
    host: Annotated[str, String("1+")] = ""
    port: Annotated[int, UInt16("1+")] = 0


@message(api_key=59, versions="0-1", flexible="0+")
class FetchSnapshotResponse(Message):
    """Answers ``FetchSnapshotRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+", ignorable=True)] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    topics: Annotated[list[FetchSnapshotResponseTopicSnapshot], Array("0+")] = field(
        default_factory=list
    )
    node_endpoints: Annotated[list[NodeEndpoint], Array("1+", tag=0)] = field(default_factory=list)
