"""AlterPartitionReassignments (API key 45): start or cancel moves of replicas."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Bool,
    Int16,
    Int32,
    Message,
    String,
    Struct,
    message,
    struct,
)


@struct
class ReassignablePartition(Struct):
    """An element of ``ReassignableTopic.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    replicas: Annotated[list[int] | None, Array("0+", nullable="0+", of=Int32)] = None


@struct
class ReassignableTopic(Struct):
    """An element of ``AlterPartitionReassignmentsRequest.topics``."""

    name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[ReassignablePartition], Array("0+")] = field(default_factory=list)


@message(api_key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsRequest(Message):
    """Asks to start or cancel moves of replicas."""

    timeout_ms: Annotated[int, Int32("0+")] = 60000
    allow_replication_factor_change: Annotated[bool, Bool("1+")] = True
    topics: Annotated[list[ReassignableTopic], Array("0+")] = field(default_factory=list)


@struct
class ReassignablePartitionResponse(Struct):
    """An element of ``ReassignableTopicResponse.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = ""


@struct
class ReassignableTopicResponse(Struct):
    """An element of ``AlterPartitionReassignmentsResponse.responses``."""

    name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[ReassignablePartitionResponse], Array("0+")] = field(
        default_factory=list
    )


@message(api_key=45, versions="0-1", flexible="0+")
class AlterPartitionReassignmentsResponse(Message):
    """Answers ``AlterPartitionReassignmentsRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    allow_replication_factor_change: Annotated[bool, Bool("1+", ignorable=True)] = True
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = ""
    responses: Annotated[list[ReassignableTopicResponse], Array("0+")] = field(default_factory=list)
