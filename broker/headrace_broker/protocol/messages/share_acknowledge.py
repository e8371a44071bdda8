"""ShareAcknowledge (API key 79): acknowledge records of a share group."""

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
    String,
    Struct,
    Uuid,
    message,
    struct,
)


@struct
class AcknowledgementBatch(Struct):
    """An element of ``AcknowledgePartition.acknowledgement_batches``."""

    first_offset: Annotated[int, Int64("0+")] = 0
    last_offset: Annotated[int, Int64("0+")] = 0
    acknowledge_types: Annotated[list[int], Array("0+", of=Int8)] = field(default_factory=list)


@struct
class AcknowledgePartition(Struct):
    """An element of ``AcknowledgeTopic.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    acknowledgement_batches: Annotated[list[AcknowledgementBatch], Array("0+")] = field(
        default_factory=list
    )


@struct
class AcknowledgeTopic(Struct):
    """An element of ``ShareAcknowledgeRequest.topics``."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    partitions: Annotated[list[AcknowledgePartition], Array("0+")] = field(default_factory=list)


@message(api_key=79, versions="1-2", flexible="0+")
class ShareAcknowledgeRequest(Message):
    """Asks to acknowledge records of a share group."""

    group_id: Annotated[str | None, String("0+", nullable="0+")] = None
    member_id: Annotated[str | None, String("0+", nullable="0+")] = ""
    share_session_epoch: Annotated[int, Int32("0+")] = 0
    is_renew_ack: Annotated[bool, Bool("2+")] = False
    topics: Annotated[list[AcknowledgeTopic], Array("0+")] = field(default_factory=list)


@struct
class LeaderIdAndEpoch(Struct):
    """The value of ``PartitionData.current_leader``."""

    leader_id: Annotated[int, Int32("0+")] = 0
    leader_epoch: Annotated[int, Int32("0+")] = 0


@struct
class PartitionData(Struct):
    """An element of ``ShareAcknowledgeTopicResponse.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = None
    current_leader: Annotated[LeaderIdAndEpoch, Nested("0+")] = field(
        default_factory=LeaderIdAndEpoch
    )


@struct
class ShareAcknowledgeTopicResponse(Struct):
    """An element of ``ShareAcknowledgeResponse.responses``."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    partitions: Annotated[list[PartitionData], Array("0+")] = field(default_factory=list)


@struct
class NodeEndpoint(Struct):
    """An element of ``ShareAcknowledgeResponse.node_endpoints``."""

    node_id: Annotated[int, Int32("0+")] = 0
    host: Annotated[str, String("0+")] = ""
    port: Annotated[int, Int32("0+")] = 0
    rack: Annotated[str | None, String("0+", nullable="0+")] = None


@message(api_key=79, versions="1-2", flexible="0+")
class ShareAcknowledgeResponse(Message):
    """Answers ``ShareAcknowledgeRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = None
    acquisition_lock_timeout_ms: Annotated[int, Int32("2+", ignorable=True)] = 0
    responses: Annotated[list[ShareAcknowledgeTopicResponse], Array("0+")] = field(
        default_factory=list
    )
    node_endpoints: Annotated[list[NodeEndpoint], Array("0+")] = field(default_factory=list)
