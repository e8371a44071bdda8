"""ConsumerGroupCurrentMemberAssignment, a coordinator's record (type 8).

The partitions a consumer group's member has.
"""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import (
    ZERO_UUID,
    Array,
    Int8,
    Int32,
    Message,
    String,
    Struct,
    Uuid,
    message,
    struct,
)


@message(api_key=8, versions="0")
class ConsumerGroupCurrentMemberAssignmentKey(Message):
    """Key of the record that says the partitions a consumer group's member has."""

    group_id: Annotated[str, String("0")] = ""
    member_id: Annotated[str, String("0")] = ""


@struct
class TopicPartitions(Struct):
    """A topic's partitions that a member owns or must give up."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    partitions: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@message(api_key=8, versions="0", flexible="0+")
class ConsumerGroupCurrentMemberAssignmentValue(Message):
    """Value of the record that says the partitions a consumer group's member has."""

    member_epoch: Annotated[int, Int32("0+")] = 0
    previous_member_epoch: Annotated[int, Int32("0+")] = 0
    state: Annotated[int, Int8("0+")] = 0
    assigned_partitions: Annotated[list[TopicPartitions], Array("0+")] = field(default_factory=list)
    partitions_pending_revocation: Annotated[list[TopicPartitions], Array("0+")] = field(
        default_factory=list
    )
