"""Fetch (API key 1): read record batches of partitions, for consumers and for followers."""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import (
    ZERO_UUID,
    Array,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Nested,
    Records,
    String,
    Struct,
    Uuid,
    message,
    struct,
)


@struct
class ReplicaState(Struct):
    """The value of ``FetchRequest.replica_state``."""

    replica_id: Annotated[int, Int32("15+")] = -1
    replica_epoch: Annotated[int, Int64("15+")] = -1


@struct
class FetchPartition(Struct):
    """An element of ``FetchTopic.partitions``."""

    partition: Annotated[int, Int32("0+")] = 0
    current_leader_epoch: Annotated[int, Int32("9+", ignorable=True)] = -1
    fetch_offset: Annotated[int, Int64("0+")] = 0
    last_fetched_epoch: Annotated[int, Int32("12+")] = -1
    log_start_offset: Annotated[int, Int64("5+", ignorable=True)] = -1
    partition_max_bytes: Annotated[int, Int32("0+")] = 0
    replica_directory_id: Annotated[UUID, Uuid("17+", tag=0, ignorable=True)] = ZERO_UUID
    high_watermark: Annotated[int, Int64("18+", tag=1, ignorable=True)] = 9223372036854775807


@struct
class FetchTopic(Struct):
    """An element of ``FetchRequest.topics``."""

    topic: Annotated[str, String("0-12", ignorable=True)] = ""
    topic_id: Annotated[UUID, Uuid("13+", ignorable=True)] = ZERO_UUID
    partitions: Annotated[list[FetchPartition], Array("0+")] = field(default_factory=list)


@struct
class ForgottenTopic(Struct):
    """An element of ``FetchRequest.forgotten_topics_data``."""

    topic: Annotated[str, String("7-12", ignorable=True)] = ""
    topic_id: Annotated[UUID, Uuid("13+", ignorable=True)] = ZERO_UUID
    partitions: Annotated[list[int], Array("7+", of=Int32)] = field(default_factory=list)


@message(api_key=1, versions="4-18", flexible="12+")
class FetchRequest(Message):
    """Asks to read record batches of partitions, for consumers and for followers."""

    cluster_id: Annotated[str | None, String("12+", nullable="12+", tag=0, ignorable=True)] = None
    replica_id: Annotated[int, Int32("0-14")] = -1
    replica_state: Annotated[ReplicaState, Nested("15+", tag=1)] = field(
        default_factory=ReplicaState
    )
    max_wait_ms: Annotated[int, Int32("0+")] = 0
    min_bytes: Annotated[int, Int32("0+")] = 0
    max_bytes: Annotated[int, Int32("3+", ignorable=True)] = 2147483647
    isolation_level: Annotated[int, Int8("4+", ignorable=True)] = 0
    session_id: Annotated[int, Int32("7+", ignorable=True)] = 0
    session_epoch: Annotated[int, Int32("7+", ignorable=True)] = -1
    topics: Annotated[list[FetchTopic], Array("0+")] = field(default_factory=list)
    forgotten_topics_data: Annotated[list[ForgottenTopic], Array("7+")] = field(
        default_factory=list
    )
    rack_id: Annotated[str, String("11+", ignorable=True)] = ""


@struct
class EpochEndOffset(Struct):
    """The value of ``PartitionData.diverging_epoch``."""

    epoch: Annotated[int, Int32("12+")] = -1
    end_offset: Annotated[int, Int64("12+")] = -1


@struct
class LeaderIdAndEpoch(Struct):
    """The value of ``PartitionData.current_leader``."""

    leader_id: Annotated[int, Int32("12+")] = -1
    leader_epoch: Annotated[int, Int32("12+")] = -1


@struct
class SnapshotId(Struct):
    """The value of ``PartitionData.snapshot_id``."""

    end_offset: Annotated[int, Int64("0+")] = -1
    epoch: Annotated[int, Int32("0+")] = -1


@struct
class AbortedTransaction(Struct):
    """An element of ``PartitionData.aborted_transactions``."""

    producer_id: Annotated[int, Int64("4+")] = 0
    first_offset: Annotated[int, Int64("4+")] = 0


@struct
class PartitionData(Struct):
    """An element of ``FetchableTopicResponse.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    high_watermark: Annotated[int, Int64("0+")] = 0
    last_stable_offset: Annotated[int, Int64("4+", ignorable=True)] = -1
    log_start_offset: Annotated[int, Int64("5+", ignorable=True)] = -1
    diverging_epoch: Annotated[EpochEndOffset, Nested("12+", tag=0)] = field(
        default_factory=EpochEndOffset
    )
    current_leader: Annotated[LeaderIdAndEpoch, Nested("12+", tag=1)] = field(
        default_factory=LeaderIdAndEpoch
    )
    snapshot_id: Annotated[SnapshotId, Nested("12+", tag=2)] = field(default_factory=SnapshotId)
    aborted_transactions: Annotated[
        list[AbortedTransaction] | None, Array("4+", nullable="4+", ignorable=True)
    ] = field(default_factory=list)
    preferred_read_replica: Annotated[int, Int32("11+")] = -1
    records: Annotated[bytes | memoryview | None, Records("0+", nullable="0+")] = None


@struct
class FetchableTopicResponse(Struct):
    """An element of ``FetchResponse.responses``."""

    topic: Annotated[str, String("0-12", ignorable=True)] = ""
    topic_id: Annotated[UUID, Uuid("13+", ignorable=True)] = ZERO_UUID
    partitions: Annotated[list[PartitionData], Array("0+")] = field(default_factory=list)


@struct
class NodeEndpoint(Struct):
    """An element of ``FetchResponse.node_endpoints``."""

    node_id: Annotated[int, Int32("16+")] = 0
    host: Annotated[str, String("16+")] = ""
    port: Annotated[int, Int32("16+")] = 0
    rack: Annotated[str | None, String("16+", nullable="16+")] = None


@message(api_key=1, versions="4-18", flexible="12+")
class FetchResponse(Message):
    """Answers ``FetchRequest``."""

    throttle_time_ms: Annotated[int, Int32("1+", ignorable=True)] = 0
    error_code: Annotated[int, Int16("7+", ignorable=True)] = 0
    session_id: Annotated[int, Int32("7+")] = 0
    responses: Annotated[list[FetchableTopicResponse], Array("0+")] = field(default_factory=list)
    node_endpoints: Annotated[list[NodeEndpoint], Array("16+", tag=0)] = field(default_factory=list)
