"""OffsetDelete (API key 47): delete offsets of a group."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Int16,
    Int32,
    Message,
    String,
    Struct,
    message,
    struct,
)


@struct
class OffsetDeleteRequestPartition(Struct):
    """An element of ``OffsetDeleteRequestTopic.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0


@struct
class OffsetDeleteRequestTopic(Struct):
    """An element of ``OffsetDeleteRequest.topics``."""

    name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[OffsetDeleteRequestPartition], Array("0+")] = field(
        default_factory=list
    )


@message(api_key=47, versions="0")
class OffsetDeleteRequest(Message):
    """Asks to delete offsets of a group."""

    group_id: Annotated[str, String("0+")] = ""
    topics: Annotated[list[OffsetDeleteRequestTopic], Array("0+")] = field(default_factory=list)


@struct
class OffsetDeleteResponsePartition(Struct):
    """An element of ``OffsetDeleteResponseTopic.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0


@struct
class OffsetDeleteResponseTopic(Struct):
    """An element of ``OffsetDeleteResponse.topics``."""

    name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[OffsetDeleteResponsePartition], Array("0+")] = field(
        default_factory=list
    )


@message(api_key=47, versions="0")
class OffsetDeleteResponse(Message):
    """Answers ``OffsetDeleteRequest``."""

    error_code: Annotated[int, Int16("0+")] = 0
    throttle_time_ms: Annotated[int, Int32("0+", ignorable=True)] = 0
    topics: Annotated[list[OffsetDeleteResponseTopic], Array("0+")] = field(default_factory=list)
