"""AlterShareGroupOffsets (API key 91): set where a share group starts."""

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
class AlterShareGroupOffsetsRequestPartition(Struct):
    """An element of ``AlterShareGroupOffsetsRequestTopic.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    start_offset: Annotated[int, Int64("0+")] = 0


@struct
class AlterShareGroupOffsetsRequestTopic(Struct):
    """An element of ``AlterShareGroupOffsetsRequest.topics``."""

    topic_name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[AlterShareGroupOffsetsRequestPartition], Array("0+")] = field(
        default_factory=list
    )


@message(api_key=91, versions="0", flexible="0+")
class AlterShareGroupOffsetsRequest(Message):
    """Asks to set where a share group starts."""

    group_id: Annotated[str, String("0+")] = ""
    topics: Annotated[list[AlterShareGroupOffsetsRequestTopic], Array("0+")] = field(
        default_factory=list
    )


@struct
class AlterShareGroupOffsetsResponsePartition(Struct):
    """An element of ``AlterShareGroupOffsetsResponseTopic.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = None


@struct
class AlterShareGroupOffsetsResponseTopic(Struct):
    """An element of ``AlterShareGroupOffsetsResponse.responses``."""

    topic_name: Annotated[str, String("0+")] = ""
    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    partitions: Annotated[list[AlterShareGroupOffsetsResponsePartition], Array("0+")] = field(
        default_factory=list
    )


@message(api_key=91, versions="0", flexible="0+")
class AlterShareGroupOffsetsResponse(Message):
    """Answers ``AlterShareGroupOffsetsRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = None
    responses: Annotated[list[AlterShareGroupOffsetsResponseTopic], Array("0+")] = field(
        default_factory=list
    )
