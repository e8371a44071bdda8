"""WriteShareGroupState (API key 85): store the state of a share group's partitions."""

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
    String,
    Struct,
    Uuid,
    message,
    struct,
)


@struct
class StateBatch(Struct):
    """An element of ``PartitionData.state_batches``."""

    first_offset: Annotated[int, Int64("0+")] = 0
    last_offset: Annotated[int, Int64("0+")] = 0
    delivery_state: Annotated[int, Int8("0+")] = 0
    delivery_count: Annotated[int, Int16("0+")] = 0


@struct
class PartitionData(Struct):
    """An element of ``WriteStateData.partitions``."""

    partition: Annotated[int, Int32("0+")] = 0
    state_epoch: Annotated[int, Int32("0+")] = 0
    leader_epoch: Annotated[int, Int32("0+")] = 0
    start_offset: Annotated[int, Int64("0+")] = 0
    delivery_complete_count: Annotated[int, Int32("1+", ignorable=True)] = -1
    state_batches: Annotated[list[StateBatch], Array("0+")] = field(default_factory=list)


@struct
class WriteStateData(Struct):
    """An element of ``WriteShareGroupStateRequest.topics``."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    partitions: Annotated[list[PartitionData], Array("0+")] = field(default_factory=list)


@message(api_key=85, versions="0-1", flexible="0+")
class WriteShareGroupStateRequest(Message):
    """Asks to store the state of a share group's partitions."""

    group_id: Annotated[str, String("0+")] = ""
    topics: Annotated[list[WriteStateData], Array("0+")] = field(default_factory=list)


@struct
class PartitionResult(Struct):
    """An element of ``WriteStateResult.partitions``."""

    partition: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = None


@struct
class WriteStateResult(Struct):
    """An element of ``WriteShareGroupStateResponse.results``."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    partitions: Annotated[list[PartitionResult], Array("0+")] = field(default_factory=list)


@message(api_key=85, versions="0-1", flexible="0+")
class WriteShareGroupStateResponse(Message):
    """Answers ``WriteShareGroupStateRequest``."""

    results: Annotated[list[WriteStateResult], Array("0+")] = field(default_factory=list)
