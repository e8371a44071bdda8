"""ListPartitionReassignments (API key 46): list the moves of replicas that go on."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Int16,
    Int32,
    Message,
    String,
    Struct,
    message,
    struct,
)


@struct
class ListPartitionReassignmentsTopics(Struct):
    """An element of ``ListPartitionReassignmentsRequest.topics``."""

    name: Annotated[str, String("0+")] = ""
    partition_indexes: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@message(api_key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsRequest(Message):
    """Asks to list the moves of replicas that go on."""

    timeout_ms: Annotated[int, Int32("0+")] = 60000
    topics: Annotated[list[ListPartitionReassignmentsTopics] | None, Array("0+", nullable="0+")] = (
        None
    )


@struct
class OngoingPartitionReassignment(Struct):
    """An element of ``OngoingTopicReassignment.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    replicas: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)
    adding_replicas: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)
    removing_replicas: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@struct
class OngoingTopicReassignment(Struct):
    """An element of ``ListPartitionReassignmentsResponse.topics``."""

    name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[OngoingPartitionReassignment], Array("0+")] = field(
        default_factory=list
    )


@message(api_key=46, versions="0", flexible="0+")
class ListPartitionReassignmentsResponse(Message):
    """Answers ``ListPartitionReassignmentsRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = ""
    topics: Annotated[list[OngoingTopicReassignment], Array("0+")] = field(default_factory=list)
