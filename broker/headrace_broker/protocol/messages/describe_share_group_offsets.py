"""DescribeShareGroupOffsets (API key 90): list where share groups start."""

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
class DescribeShareGroupOffsetsRequestTopic(Struct):
    """An element of ``DescribeShareGroupOffsetsRequestGroup.topics``."""

    topic_name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@struct
class DescribeShareGroupOffsetsRequestGroup(Struct):
    """An element of ``DescribeShareGroupOffsetsRequest.groups``."""

    group_id: Annotated[str, String("0+")] = ""
    topics: Annotated[
        list[DescribeShareGroupOffsetsRequestTopic] | None, Array("0+", nullable="0+")
    ] = field(default_factory=list)


@message(api_key=90, versions="0-1", flexible="0+")
class DescribeShareGroupOffsetsRequest(Message):
    """Asks to list where share groups start."""

    groups: Annotated[list[DescribeShareGroupOffsetsRequestGroup], Array("0+")] = field(
        default_factory=list
    )


@struct
class DescribeShareGroupOffsetsResponsePartition(Struct):
    """An element of ``DescribeShareGroupOffsetsResponseTopic.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    start_offset: Annotated[int, Int64("0+")] = 0
    leader_epoch: Annotated[int, Int32("0+")] = 0
    lag: Annotated[int, Int64("1+", ignorable=True)] = -1
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = None


@struct
class DescribeShareGroupOffsetsResponseTopic(Struct):
    """An element of ``DescribeShareGroupOffsetsResponseGroup.topics``."""

    topic_name: Annotated[str, String("0+")] = ""
    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    partitions: Annotated[list[DescribeShareGroupOffsetsResponsePartition], Array("0+")] = field(
        default_factory=list
    )


@struct
class DescribeShareGroupOffsetsResponseGroup(Struct):
    """An element of ``DescribeShareGroupOffsetsResponse.groups``."""

    group_id: Annotated[str, String("0+")] = ""
    topics: Annotated[list[DescribeShareGroupOffsetsResponseTopic], Array("0+")] = field(
        default_factory=list
    )
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = None


@message(api_key=90, versions="0-1", flexible="0+")
class DescribeShareGroupOffsetsResponse(Message):
    """Answers ``DescribeShareGroupOffsetsRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    groups: Annotated[list[DescribeShareGroupOffsetsResponseGroup], Array("0+")] = field(
        default_factory=list
    )
