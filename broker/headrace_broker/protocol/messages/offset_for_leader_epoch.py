"""OffsetForLeaderEpoch (API key 23): find where a leader epoch ends in a log."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
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
class OffsetForLeaderPartition(Struct):
    """An element of ``OffsetForLeaderTopic.partitions``."""

    partition: Annotated[int, Int32("0+")] = 0
    current_leader_epoch: Annotated[int, Int32("2+", ignorable=True)] = -1
    leader_epoch: Annotated[int, Int32("0+")] = 0


@struct
class OffsetForLeaderTopic(Struct):
    """An element of ``OffsetForLeaderEpochRequest.topics``."""

    topic: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[OffsetForLeaderPartition], Array("0+")] = field(default_factory=list)


@message(api_key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochRequest(Message):
    """Asks to find where a leader epoch ends in a log."""

    replica_id: Annotated[int, Int32("3+", ignorable=True)] = -2
    topics: Annotated[list[OffsetForLeaderTopic], Array("0+")] = field(default_factory=list)


@struct
class EpochEndOffset(Struct):
    """An element of ``OffsetForLeaderTopicResult.partitions``."""

    error_code: Annotated[int, Int16("0+")] = 0
    partition: Annotated[int, Int32("0+")] = 0
    leader_epoch: Annotated[int, Int32("1+", ignorable=True)] = -1
    end_offset: Annotated[int, Int64("0+")] = -1


@struct
class OffsetForLeaderTopicResult(Struct):
    """An element of ``OffsetForLeaderEpochResponse.topics``."""

    topic: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[EpochEndOffset], Array("0+")] = field(default_factory=list)


@message(api_key=23, versions="2-4", flexible="4+")
class OffsetForLeaderEpochResponse(Message):
    """Answers ``OffsetForLeaderEpochRequest``."""

    throttle_time_ms: Annotated[int, Int32("2+", ignorable=True)] = 0
    topics: Annotated[list[OffsetForLeaderTopicResult], Array("0+")] = field(default_factory=list)
