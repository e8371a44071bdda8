"""DeleteRecords (API key 21): move the start of partitions' logs forward."""

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
class DeleteRecordsPartition(Struct):
    """An element of ``DeleteRecordsTopic.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    offset: Annotated[int, Int64("0+")] = 0


@struct
class DeleteRecordsTopic(Struct):
    """An element of ``DeleteRecordsRequest.topics``."""

    name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[DeleteRecordsPartition], Array("0+")] = field(default_factory=list)


@message(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsRequest(Message):
    """Asks to move the start of partitions' logs forward."""

    topics: Annotated[list[DeleteRecordsTopic], Array("0+")] = field(default_factory=list)
    timeout_ms: Annotated[int, Int32("0+")] = 0


@struct
class DeleteRecordsPartitionResult(Struct):
    """An element of ``DeleteRecordsTopicResult.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    low_watermark: Annotated[int, Int64("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0


@struct
class DeleteRecordsTopicResult(Struct):
    """An element of ``DeleteRecordsResponse.topics``."""

    name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[DeleteRecordsPartitionResult], Array("0+")] = field(
        default_factory=list
    )


@message(api_key=21, versions="0-2", flexible="2+")
class DeleteRecordsResponse(Message):
    """Answers ``DeleteRecordsRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    topics: Annotated[list[DeleteRecordsTopicResult], Array("0+")] = field(default_factory=list)
