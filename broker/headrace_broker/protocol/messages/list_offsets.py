"""ListOffsets (API key 2): find offsets by timestamp, or a log's ends."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Struct,
    message,
    struct,
)


@struct
class ListOffsetsPartition(Struct):
    """An element of ``ListOffsetsTopic.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    current_leader_epoch: Annotated[int, Int32("4+", ignorable=True)] = -1
    timestamp: Annotated[int, Int64("0+")] = 0


@struct
class ListOffsetsTopic(Struct):
    """An element of ``ListOffsetsRequest.topics``."""

    name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[ListOffsetsPartition], Array("0+")] = field(default_factory=list)


@message(api_key=2, versions="1-11", flexible="6+")
class ListOffsetsRequest(Message):
    """Asks to find offsets by timestamp, or a log's ends."""

    replica_id: Annotated[int, Int32("0+")] = 0
    isolation_level: Annotated[int, Int8("2+")] = 0
    topics: Annotated[list[ListOffsetsTopic], Array("0+")] = field(default_factory=list)
    timeout_ms: Annotated[int, Int32("10+", ignorable=True)] = 0


@struct
class ListOffsetsPartitionResponse(Struct):
    """An element of ``ListOffsetsTopicResponse.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    timestamp: Annotated[int, Int64("1+")] = -1
    offset: Annotated[int, Int64("1+")] = -1
    leader_epoch: Annotated[int, Int32("4+")] = -1


@struct
class ListOffsetsTopicResponse(Struct):
    """An element of ``ListOffsetsResponse.topics``."""

    name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[ListOffsetsPartitionResponse], Array("0+")] = field(
        default_factory=list
    )


@message(api_key=2, versions="1-11", flexible="6+")
class ListOffsetsResponse(Message):
    """Answers ``ListOffsetsRequest``."""

    throttle_time_ms: Annotated[int, Int32("2+", ignorable=True)] = 0
    topics: Annotated[list[ListOffsetsTopicResponse], Array("0+")] = field(default_factory=list)
