"""ShareFetch (API key 78): acquire records of a share group."""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import (
    ZERO_UUID,
    Array,
    Bool,
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
class AcknowledgementBatch(Struct):
    """An element of ``FetchPartition.acknowledgement_batches``."""

    first_offset: Annotated[int, Int64("0+")] = 0
    last_offset: Annotated[int, Int64("0+")] = 0
    acknowledge_types: Annotated[list[int], Array("0+", of=Int8)] = field(default_factory=list)


@struct
class FetchPartition(Struct):
    """An element of ``FetchTopic.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    partition_max_bytes: Annotated[int, Int32("0")] = 0
    acknowledgement_batches: Annotated[list[AcknowledgementBatch], Array("0+")] = field(
        default_factory=list
    )


@struct
class FetchTopic(Struct):
    """An element of ``ShareFetchRequest.topics``."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    partitions: Annotated[list[FetchPartition], Array("0+")] = field(default_factory=list)


@struct
class ForgottenTopic(Struct):
    """An element of ``ShareFetchRequest.forgotten_topics_data``."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    partitions: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@message(api_key=78, versions="1-2", flexible="0+")
class ShareFetchRequest(Message):
    """Asks to acquire records of a share group."""

    group_id: Annotated[str | None, String("0+", nullable="0+")] = None
    member_id: Annotated[str | None, String("0+", nullable="0+")] = ""
    share_session_epoch: Annotated[int, Int32("0+")] = 0
    max_wait_ms: Annotated[int, Int32("0+")] = 0
    min_bytes: Annotated[int, Int32("0+")] = 0
    max_bytes: Annotated[int, Int32("0+")] = 2147483647
    max_records: Annotated[int, Int32("1+")] = 0
    batch_size: Annotated[int, Int32("1+")] = 0
    share_acquire_mode: Annotated[int, Int8("2+", ignorable=True)] = 0
    is_renew_ack: Annotated[bool, Bool("2+")] = False
    topics: Annotated[list[FetchTopic], Array("0+")] = field(default_factory=list)
    forgotten_topics_data: Annotated[list[ForgottenTopic], Array("0+")] = field(
        default_factory=list
    )


@struct
class LeaderIdAndEpoch(Struct):
    """The value of ``PartitionData.current_leader``."""

    leader_id: Annotated[int, Int32("0+")] = 0
    leader_epoch: Annotated[int, Int32("0+")] = 0


@struct
class AcquiredRecords(Struct):
    """An element of ``PartitionData.acquired_records``."""

    first_offset: Annotated[int, Int64("0+")] = 0
    last_offset: Annotated[int, Int64("0+")] = 0
    delivery_count: Annotated[int, Int16("0+")] = 0


@struct
class PartitionData(Struct):
    """An element of ``ShareFetchableTopicResponse.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = None
    acknowledge_error_code: Annotated[int, Int16("0+")] = 0
    acknowledge_error_message: Annotated[str | None, String("0+", nullable="0+")] = None
    current_leader: Annotated[LeaderIdAndEpoch, Nested("0+")] = field(
        default_factory=LeaderIdAndEpoch
    )
    records: Annotated[bytes | memoryview | None, Records("0+", nullable="0")] = None
    acquired_records: Annotated[list[AcquiredRecords], Array("0+")] = field(default_factory=list)


@struct
class ShareFetchableTopicResponse(Struct):
    """An element of ``ShareFetchResponse.responses``."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    partitions: Annotated[list[PartitionData], Array("0+")] = field(default_factory=list)


@struct
class NodeEndpoint(Struct):
    """An element of ``ShareFetchResponse.node_endpoints``."""

    node_id: Annotated[int, Int32("0+")] = 0
    host: Annotated[str, String("0+")] = ""
    port: Annotated[int, Int32("0+")] = 0
    rack: Annotated[str | None, String("0+", nullable="0+")] = None


@message(api_key=78, versions="1-2", flexible="0+")
class ShareFetchResponse(Message):
    """Answers ``ShareFetchRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = None
    acquisition_lock_timeout_ms: Annotated[int, Int32("1+")] = 0
    responses: Annotated[list[ShareFetchableTopicResponse], Array("0+")] = field(
        default_factory=list
    )
    node_endpoints: Annotated[list[NodeEndpoint], Array("0+")] = field(default_factory=list)
