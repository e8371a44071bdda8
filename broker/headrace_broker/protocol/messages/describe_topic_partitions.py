"""DescribeTopicPartitions (API key 75): list the partitions of topics page by page."""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import (
    ZERO_UUID,
    Array,
    Bool,
    Int16,
    Int32,
    Message,
    Nested,
    String,
    Struct,
    Uuid,
    message,
    struct,
)


@struct
class TopicRequest(Struct):
    """An element of ``DescribeTopicPartitionsRequest.topics``."""

    name: Annotated[str, String("0+")] = ""


@struct
class DescribeTopicPartitionsRequestCursor(Struct):
    """The value of ``DescribeTopicPartitionsRequest.cursor``."""

    topic_name: Annotated[str, String("0+")] = ""
    partition_index: Annotated[int, Int32("0+")] = 0


@message(api_key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsRequest(Message):
    """Asks to list the partitions of topics page by page."""

    topics: Annotated[list[TopicRequest], Array("0+")] = field(default_factory=list)
    response_partition_limit: Annotated[int, Int32("0+")] = 2000
    cursor: Annotated[DescribeTopicPartitionsRequestCursor | None, Nested("0+", nullable="0+")] = (
        None
    )


@struct
class DescribeTopicPartitionsResponsePartition(Struct):
    """An element of ``DescribeTopicPartitionsResponseTopic.partitions``."""

    error_code: Annotated[int, Int16("0+")] = 0
    partition_index: Annotated[int, Int32("0+")] = 0
    leader_id: Annotated[int, Int32("0+")] = 0
    leader_epoch: Annotated[int, Int32("0+", ignorable=True)] = -1
    replica_nodes: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)
    isr_nodes: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)
    eligible_leader_replicas: Annotated[list[int] | None, Array("0+", nullable="0+", of=Int32)] = (
        None
    )
    last_known_elr: Annotated[list[int] | None, Array("0+", nullable="0+", of=Int32)] = None
    offline_replicas: Annotated[list[int], Array("0+", ignorable=True, of=Int32)] = field(
        default_factory=list
    )


@struct
class DescribeTopicPartitionsResponseTopic(Struct):
    """An element of ``DescribeTopicPartitionsResponse.topics``."""

    error_code: Annotated[int, Int16("0+")] = 0
    name: Annotated[str | None, String("0+", nullable="0+")] = ""
    topic_id: Annotated[UUID, Uuid("0+", ignorable=True)] = ZERO_UUID
    is_internal: Annotated[bool, Bool("0+", ignorable=True)] = False
    partitions: Annotated[list[DescribeTopicPartitionsResponsePartition], Array("0+")] = field(
        default_factory=list
    )
    topic_authorized_operations: Annotated[int, Int32("0+")] = -2147483648


@struct
class DescribeTopicPartitionsResponseCursor(Struct):
    """The value of ``DescribeTopicPartitionsResponse.next_cursor``."""

    topic_name: Annotated[str, String("0+")] = ""
    partition_index: Annotated[int, Int32("0+")] = 0


@message(api_key=75, versions="0", flexible="0+")
class DescribeTopicPartitionsResponse(Message):
    """Answers ``DescribeTopicPartitionsRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+", ignorable=True)] = 0
    topics: Annotated[list[DescribeTopicPartitionsResponseTopic], Array("0+")] = field(
        default_factory=list
    )
    next_cursor: Annotated[
        DescribeTopicPartitionsResponseCursor | None, Nested("0+", nullable="0+")
    ] = None
