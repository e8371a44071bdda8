"""ShareGroupDescribe (API key 77): describe share groups."""

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


@message(api_key=77, versions="1", flexible="0+")
class ShareGroupDescribeRequest(Message):
    """Asks to describe share groups."""

    group_ids: Annotated[list[str], Array("0+", of=String)] = field(default_factory=list)
    include_authorized_operations: Annotated[bool, Bool("0+")] = False


@struct
class TopicPartitions(Struct):
    """An element of ``Assignment.topic_partitions``."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    topic_name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@struct
class Assignment(Struct):
    """The value of ``Member.assignment``."""

    topic_partitions: Annotated[list[TopicPartitions], Array("0+")] = field(default_factory=list)


@struct
class Member(Struct):
    """An element of ``DescribedGroup.members``."""

    member_id: Annotated[str, String("0+")] = ""
    rack_id: Annotated[str | None, String("0+", nullable="0+")] = None
    member_epoch: Annotated[int, Int32("0+")] = 0
    client_id: Annotated[str, String("0+")] = ""
    client_host: Annotated[str, String("0+")] = ""
    subscribed_topic_names: Annotated[list[str], Array("0+", of=String)] = field(
        default_factory=list
    )
    assignment: Annotated[Assignment, Nested("0+")] = field(default_factory=Assignment)


@struct
class DescribedGroup(Struct):
    """An element of ``ShareGroupDescribeResponse.groups``."""

    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = None
    group_id: Annotated[str, String("0+")] = ""
    group_state: Annotated[str, String("0+")] = ""
    group_epoch: Annotated[int, Int32("0+")] = 0
    assignment_epoch: Annotated[int, Int32("0+")] = 0
    assignor_name: Annotated[str, String("0+")] = ""
    members: Annotated[list[Member], Array("0+")] = field(default_factory=list)
    authorized_operations: Annotated[int, Int32("0+")] = -2147483648


@message(api_key=77, versions="1", flexible="0+")
class ShareGroupDescribeResponse(Message):
    """Answers ``ShareGroupDescribeRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    groups: Annotated[list[DescribedGroup], Array("0+")] = field(default_factory=list)
