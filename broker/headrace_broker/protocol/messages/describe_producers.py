"""DescribeProducers (API key 61): list the producers that a partition remembers."""

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
class TopicRequest(Struct):
    """An element of ``DescribeProducersRequest.topics``."""

    name: Annotated[str, String("0+")] = ""
    partition_indexes: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@message(api_key=61, versions="0", flexible="0+")
class DescribeProducersRequest(Message):
    """Asks to list the producers that a partition remembers."""

    topics: Annotated[list[TopicRequest], Array("0+")] = field(default_factory=list)


@struct
class ProducerState(Struct):
    """An element of ``PartitionResponse.active_producers``."""

    producer_id: Annotated[int, Int64("0+")] = 0
    producer_epoch: Annotated[int, Int32("0+")] = 0
    last_sequence: Annotated[int, Int32("0+")] = -1
    last_timestamp: Annotated[int, Int64("0+")] = -1
    coordinator_epoch: Annotated[int, Int32("0+")] = 0
    current_txn_start_offset: Annotated[int, Int64("0+")] = -1


@struct
class PartitionResponse(Struct):
    """An element of ``TopicResponse.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = None
    active_producers: Annotated[list[ProducerState], Array("0+")] = field(default_factory=list)


@struct
class TopicResponse(Struct):
    """An element of ``DescribeProducersResponse.topics``."""

    name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[PartitionResponse], Array("0+")] = field(default_factory=list)


@message(api_key=61, versions="0", flexible="0+")
class DescribeProducersResponse(Message):
    """Answers ``DescribeProducersRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    topics: Annotated[list[TopicResponse], Array("0+")] = field(default_factory=list)
