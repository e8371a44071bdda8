"""CreatePartitions (API key 37): add partitions to topics."""

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
class CreatePartitionsAssignment(Struct):
    """An element of ``CreatePartitionsTopic.assignments``."""

    broker_ids: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@struct
class CreatePartitionsTopic(Struct):
    """An element of ``CreatePartitionsRequest.topics``."""

    name: Annotated[str, String("0+")] = ""
    count: Annotated[int, Int32("0+")] = 0
    assignments: Annotated[list[CreatePartitionsAssignment] | None, Array("0+", nullable="0+")] = (
        field(default_factory=list)
    )


@message(api_key=37, versions="0-3", flexible="2+")
class CreatePartitionsRequest(Message):
    """Asks to add partitions to topics."""

    topics: Annotated[list[CreatePartitionsTopic], Array("0+")] = field(default_factory=list)
    timeout_ms: Annotated[int, Int32("0+")] = 0
    validate_only: Annotated[bool, Bool("0+")] = False


@struct
class CreatePartitionsTopicResult(Struct):
    """An element of ``CreatePartitionsResponse.results``."""

    name: Annotated[str, String("0+")] = ""
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = None


@message(api_key=37, versions="0-3", flexible="2+")
class CreatePartitionsResponse(Message):
    """Answers ``CreatePartitionsRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    results: Annotated[list[CreatePartitionsTopicResult], Array("0+")] = field(default_factory=list)
