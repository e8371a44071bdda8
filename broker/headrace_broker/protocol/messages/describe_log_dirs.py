"""DescribeLogDirs (API key 35): list log directories with the size of their replicas."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Bool,
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
class DescribableLogDirTopic(Struct):
    """An element of ``DescribeLogDirsRequest.topics``."""

    topic: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@message(api_key=35, versions="1-4", flexible="2+")
class DescribeLogDirsRequest(Message):
    """Asks to list log directories with the size of their replicas."""

    topics: Annotated[list[DescribableLogDirTopic] | None, Array("0+", nullable="0+")] = field(
        default_factory=list
    )


@struct
class DescribeLogDirsPartition(Struct):
    """An element of ``DescribeLogDirsTopic.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    partition_size: Annotated[int, Int64("0+")] = 0
    offset_lag: Annotated[int, Int64("0+")] = 0
    is_future_key: Annotated[bool, Bool("0+")] = False


@struct
class DescribeLogDirsTopic(Struct):
    """An element of ``DescribeLogDirsResult.topics``."""

    name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[DescribeLogDirsPartition], Array("0+")] = field(default_factory=list)


@struct
class DescribeLogDirsResult(Struct):
    """An element of ``DescribeLogDirsResponse.results``."""

    error_code: Annotated[int, Int16("0+")] = 0
    log_dir: Annotated[str, String("0+")] = ""
    topics: Annotated[list[DescribeLogDirsTopic], Array("0+")] = field(default_factory=list)
    total_bytes: Annotated[int, Int64("4+", ignorable=True)] = -1
    usable_bytes: Annotated[int, Int64("4+", ignorable=True)] = -1


@message(api_key=35, versions="1-4", flexible="2+")
class DescribeLogDirsResponse(Message):
    """Answers ``DescribeLogDirsRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("3+", ignorable=True)] = 0
    results: Annotated[list[DescribeLogDirsResult], Array("0+")] = field(default_factory=list)
