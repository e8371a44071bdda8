"""DescribeQuorum (API key 55): describe the voters and observers of the metadata quorum."""

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
    UInt16,
    Uuid,
    message,
    struct,
)


@struct
class DescribeQuorumRequestPartitionData(Struct):
    """An element of ``DescribeQuorumRequestTopicData.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0


@struct
class DescribeQuorumRequestTopicData(Struct):
    """An element of ``DescribeQuorumRequest.topics``."""

    topic_name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[DescribeQuorumRequestPartitionData], Array("0+")] = field(
        default_factory=list
    )


@message(api_key=55, versions="0-2", flexible="0+")
class DescribeQuorumRequest(Message):
    """Asks to describe the voters and observers of the metadata quorum."""

    topics: Annotated[list[DescribeQuorumRequestTopicData], Array("0+")] = field(
        default_factory=list
    )


@struct
class ReplicaState(Struct):
    """An element of ``DescribeQuorumResponsePartitionData.current_voters`` and others."""

    replica_id: Annotated[int, Int32("0+")] = 0
    replica_directory_id: Annotated[UUID, Uuid("2+")] = ZERO_UUID
    log_end_offset: Annotated[int, Int64("0+")] = 0
    last_fetch_timestamp: Annotated[int, Int64("1+", ignorable=True)] = -1
    last_caught_up_timestamp: Annotated[int, Int64("1+", ignorable=True)] = -1


@struct
class DescribeQuorumResponsePartitionData(Struct):
    """An element of ``DescribeQuorumResponseTopicData.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("2+", nullable="2+", ignorable=True)] = ""
    leader_id: Annotated[int, Int32("0+")] = 0
    leader_epoch: Annotated[int, Int32("0+")] = 0
    high_watermark: Annotated[int, Int64("0+")] = 0
    current_voters: Annotated[list[ReplicaState], Array("0+")] = field(default_factory=list)
    observers: Annotated[list[ReplicaState], Array("0+")] = field(default_factory=list)


@struct
class DescribeQuorumResponseTopicData(Struct):
    """An element of ``DescribeQuorumResponse.topics``."""

    topic_name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[DescribeQuorumResponsePartitionData], Array("0+")] = field(
        default_factory=list
    )


@struct
class Listener(Struct):
    """An element of ``Node.listeners``."""

    name: Annotated[str, String("2+")] = ""
    host: Annotated[str, String("2+")] = ""
    port: Annotated[int, UInt16("2+")] = 0


@struct
class Node(Struct):
    """An element of ``DescribeQuorumResponse.nodes``."""

    node_id: Annotated[int, Int32("2+")] = 0
    listeners: Annotated[list[Listener], Array("2+")] = field(default_factory=list)


@message(api_key=55, versions="0-2", flexible="0+")
class DescribeQuorumResponse(Message):
    """Answers ``DescribeQuorumRequest``."""

    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("2+", nullable="2+", ignorable=True)] = ""
    topics: Annotated[list[DescribeQuorumResponseTopicData], Array("0+")] = field(
        default_factory=list
    )
    nodes: Annotated[list[Node], Array("2+")] = field(default_factory=list)
