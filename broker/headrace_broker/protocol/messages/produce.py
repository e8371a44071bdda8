"""Produce (API key 0): append record batches to partitions."""

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
    Nested,
    Records,
    String,
    Struct,
    Uuid,
    message,
    struct,
)


@struct
class PartitionProduceData(Struct):
    """An element of ``TopicProduceData.partition_data``."""

    index: Annotated[int, Int32("0+")] = 0
    records: Annotated[bytes | memoryview | None, Records("0+", nullable="0+")] = None


@struct
class TopicProduceData(Struct):
    """An element of ``ProduceRequest.topic_data``."""

    name: Annotated[str, String("0-12", ignorable=True)] = ""
    topic_id: Annotated[UUID, Uuid("13+", ignorable=True)] = ZERO_UUID
    partition_data: Annotated[list[PartitionProduceData], Array("0+")] = field(default_factory=list)


@message(api_key=0, versions="3-13", flexible="9+")
class ProduceRequest(Message):
    """Asks to append record batches to partitions."""

    transactional_id: Annotated[str | None, String("3+", nullable="3+")] = None
    acks: Annotated[int, Int16("0+")] = 0
    timeout_ms: Annotated[int, Int32("0+")] = 0
    topic_data: Annotated[list[TopicProduceData], Array("0+")] = field(default_factory=list)


@struct
class BatchIndexAndErrorMessage(Struct):
    """An element of ``PartitionProduceResponse.record_errors``."""

    batch_index: Annotated[int, Int32("8+")] = 0
    batch_index_error_message: Annotated[str | None, String("8+", nullable="8+")] = None


@struct
class LeaderIdAndEpoch(Struct):
    """The value of ``PartitionProduceResponse.current_leader``."""

    leader_id: Annotated[int, Int32("10+")] = -1
    leader_epoch: Annotated[int, Int32("10+")] = -1


@struct
class PartitionProduceResponse(Struct):
    """An element of ``TopicProduceResponse.partition_responses``."""

    index: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    base_offset: Annotated[int, Int64("0+")] = 0
    log_append_time_ms: Annotated[int, Int64("2+", ignorable=True)] = -1
    log_start_offset: Annotated[int, Int64("5+", ignorable=True)] = -1
    record_errors: Annotated[list[BatchIndexAndErrorMessage], Array("8+", ignorable=True)] = field(
        default_factory=list
    )
    error_message: Annotated[str | None, String("8+", nullable="8+", ignorable=True)] = None
    current_leader: Annotated[LeaderIdAndEpoch, Nested("10+", tag=0)] = field(
        default_factory=LeaderIdAndEpoch
    )


@struct
class TopicProduceResponse(Struct):
    """An element of ``ProduceResponse.responses``."""

    name: Annotated[str, String("0-12", ignorable=True)] = ""
    topic_id: Annotated[UUID, Uuid("13+", ignorable=True)] = ZERO_UUID
    partition_responses: Annotated[list[PartitionProduceResponse], Array("0+")] = field(
        default_factory=list
    )


@struct
class NodeEndpoint(Struct):
    """An element of ``ProduceResponse.node_endpoints``."""

    node_id: Annotated[int, Int32("10+")] = 0
    host: Annotated[str, String("10+")] = ""
    port: Annotated[int, Int32("10+")] = 0
    rack: Annotated[str | None, String("10+", nullable="10+")] = None


@message(api_key=0, versions="3-13", flexible="9+")
class ProduceResponse(Message):
    """Answers ``ProduceRequest``."""

    responses: Annotated[list[TopicProduceResponse], Array("0+")] = field(default_factory=list)
    throttle_time_ms: Annotated[int, Int32("1+", ignorable=True)] = 0
    node_endpoints: Annotated[list[NodeEndpoint], Array("10+", tag=0)] = field(default_factory=list)
