"""ReadShareGroupStateSummary (API key 87): read where a share group's partitions start."""

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
    """An element of ``ReadStateSummaryData.partitions``."""

    partition: Annotated[int, Int32("0+")] = 0
    leader_epoch: Annotated[int, Int32("0+")] = 0


@struct
class ReadStateSummaryData(Struct):
    """An element of ``ReadShareGroupStateSummaryRequest.topics``."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    partitions: Annotated[list[PartitionData], Array("0+")] = field(default_factory=list)


@message(api_key=87, versions="0-1", flexible="0+")
class ReadShareGroupStateSummaryRequest(Message):
    """Asks to read where a share group's partitions start."""

    group_id: Annotated[str, String("0+")] = ""
    topics: Annotated[list[ReadStateSummaryData], Array("0+")] = field(default_factory=list)


@struct
class PartitionResult(Struct):
    """An element of ``ReadStateSummaryResult.partitions``."""

    partition: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = None
    state_epoch: Annotated[int, Int32("0+")] = 0
    leader_epoch: Annotated[int, Int32("0+")] = 0
    start_offset: Annotated[int, Int64("0+")] = 0
    delivery_complete_count: Annotated[int, Int32("1+", ignorable=True)] = -1


@struct
class ReadStateSummaryResult(Struct):
    """An element of ``ReadShareGroupStateSummaryResponse.results``."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    partitions: Annotated[list[PartitionResult], Array("0+")] = field(default_factory=list)


@message(api_key=87, versions="0-1", flexible="0+")
class ReadShareGroupStateSummaryResponse(Message):
    """Answers ``ReadShareGroupStateSummaryRequest``."""

    results: Annotated[list[ReadStateSummaryResult], Array("0+")] = field(default_factory=list)
