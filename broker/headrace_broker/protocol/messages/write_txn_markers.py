"""WriteTxnMarkers (API key 27): end a transaction in the partitions it wrote to."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Bool,
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
class WritableTxnMarkerTopic(Struct):
    """An element of ``WritableTxnMarker.topics``."""

    name: Annotated[str, String("0+")] = ""
    partition_indexes: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@struct
class WritableTxnMarker(Struct):
    """An element of ``WriteTxnMarkersRequest.markers``."""

    producer_id: Annotated[int, Int64("0+")] = 0
    producer_epoch: Annotated[int, Int16("0+")] = 0
    transaction_result: Annotated[bool, Bool("0+")] = False
    topics: Annotated[list[WritableTxnMarkerTopic], Array("0+")] = field(default_factory=list)
    coordinator_epoch: Annotated[int, Int32("0+")] = 0
    transaction_version: Annotated[int, Int8("2+", ignorable=True)] = 0


@message(api_key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersRequest(Message):
    """Asks to end a transaction in the partitions it wrote to."""

    markers: Annotated[list[WritableTxnMarker], Array("0+")] = field(default_factory=list)


@struct
class WritableTxnMarkerPartitionResult(Struct):
    """An element of ``WritableTxnMarkerTopicResult.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0


@struct
class WritableTxnMarkerTopicResult(Struct):
    """An element of ``WritableTxnMarkerResult.topics``."""

    name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[WritableTxnMarkerPartitionResult], Array("0+")] = field(
        default_factory=list
    )


@struct
class WritableTxnMarkerResult(Struct):
    """An element of ``WriteTxnMarkersResponse.markers``."""

    producer_id: Annotated[int, Int64("0+")] = 0
    topics: Annotated[list[WritableTxnMarkerTopicResult], Array("0+")] = field(default_factory=list)


@message(api_key=27, versions="1-2", flexible="1+")
class WriteTxnMarkersResponse(Message):
    """Answers ``WriteTxnMarkersRequest``."""

    markers: Annotated[list[WritableTxnMarkerResult], Array("0+")] = field(default_factory=list)
