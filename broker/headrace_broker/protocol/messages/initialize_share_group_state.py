"""InitializeShareGroupState (API key 83): start the state of a share group's partitions."""

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
    String,
    Struct,
    Uuid,
    message,
    struct,
)


@struct
class PartitionData(Struct):
    """An element of ``InitializeStateData.partitions``."""

    partition: Annotated[int, Int32("0+")] = 0
    state_epoch: Annotated[int, Int32("0+")] = 0
    start_offset: Annotated[int, Int64("0+")] = 0


@struct
class InitializeStateData(Struct):
    """An element of ``InitializeShareGroupStateRequest.topics``."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    partitions: Annotated[list[PartitionData], Array("0+")] = field(default_factory=list)


@message(api_key=83, versions="0", flexible="0+")
class InitializeShareGroupStateRequest(Message):
    """Asks to start the state of a share group's partitions."""

    group_id: Annotated[str, String("0+")] = ""
    topics: Annotated[list[InitializeStateData], Array("0+")] = field(default_factory=list)


@struct
class PartitionResult(Struct):
    """An element of ``InitializeStateResult.partitions``."""

    partition: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = None


@struct
class InitializeStateResult(Struct):
    """An element of ``InitializeShareGroupStateResponse.results``."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    partitions: Annotated[list[PartitionResult], Array("0+")] = field(default_factory=list)


@message(api_key=83, versions="0", flexible="0+")
class InitializeShareGroupStateResponse(Message):
    """Answers ``InitializeShareGroupStateRequest``."""

    results: Annotated[list[InitializeStateResult], Array("0+")] = field(default_factory=list)
