"""DeleteShareGroupOffsets (API key 92): delete a share group's offsets of topics."""

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
class DeleteShareGroupOffsetsRequestTopic(Struct):
    """An element of ``DeleteShareGroupOffsetsRequest.topics``."""

    topic_name: Annotated[str, String("0+")] = ""


@message(api_key=92, versions="0", flexible="0+")
class DeleteShareGroupOffsetsRequest(Message):
    """Asks to delete a share group's offsets of topics."""

    group_id: Annotated[str, String("0+")] = ""
    topics: Annotated[list[DeleteShareGroupOffsetsRequestTopic], Array("0+")] = field(
        default_factory=list
    )


@struct
class DeleteShareGroupOffsetsResponseTopic(Struct):
    """An element of ``DeleteShareGroupOffsetsResponse.responses``."""

    topic_name: Annotated[str, String("0+")] = ""
    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = None


@message(api_key=92, versions="0", flexible="0+")
class DeleteShareGroupOffsetsResponse(Message):
    """Answers ``DeleteShareGroupOffsetsRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = None
    responses: Annotated[list[DeleteShareGroupOffsetsResponseTopic], Array("0+")] = field(
        default_factory=list
    )
