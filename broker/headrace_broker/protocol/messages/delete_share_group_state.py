"""DeleteShareGroupState (API key 86): delete a share group's state of partitions."""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import (
    ZERO_UUID,
    Array,
    Int16,
    Int32,
    Message,
    String,
    Struct,
    Uuid,
    message,
    struct,
)


@struct
class PartitionData(Struct):
    """An element of ``DeleteStateData.partitions``."""

    partition: Annotated[int, Int32("0+")] = 0


@struct
class DeleteStateData(Struct):
    """An element of ``DeleteShareGroupStateRequest.topics``."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    partitions: Annotated[list[PartitionData], Array("0+")] = field(default_factory=list)


@message(api_key=86, versions="0", flexible="0+")
class DeleteShareGroupStateRequest(Message):
    """Asks to delete a share group's state of partitions."""

    group_id: Annotated[str, String("0+")] = ""
    topics: Annotated[list[DeleteStateData], Array("0+")] = field(default_factory=list)


@struct
class PartitionResult(Struct):
    """An element of ``DeleteStateResult.partitions``."""

    partition: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = None


@struct
class DeleteStateResult(Struct):
    """An element of ``DeleteShareGroupStateResponse.results``."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    partitions: Annotated[list[PartitionResult], Array("0+")] = field(default_factory=list)


@message(api_key=86, versions="0", flexible="0+")
class DeleteShareGroupStateResponse(Message):
    """Answers ``DeleteShareGroupStateRequest``."""

    results: Annotated[list[DeleteStateResult], Array("0+")] = field(default_factory=list)
