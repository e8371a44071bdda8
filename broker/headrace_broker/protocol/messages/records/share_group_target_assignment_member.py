"""ShareGroupTargetAssignmentMember, a coordinator's record (type 13).

The partitions a share group's member shall have.
"""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import (
    ZERO_UUID,
    Array,
    Int32,
    Message,
    String,
    Struct,
    Uuid,
    message,
    struct,
)


@message(api_key=13, versions="0")
class ShareGroupTargetAssignmentMemberKey(Message):
    """Key of the record that says the partitions a share group's member shall have."""

    group_id: Annotated[str, String("0")] = ""
    member_id: Annotated[str, String("0")] = ""


@struct
class TopicPartition(Struct):
    """An element of ``ShareGroupTargetAssignmentMemberValue.topic_partitions``."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    partitions: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@message(api_key=13, versions="0", flexible="0+")
class ShareGroupTargetAssignmentMemberValue(Message):
    """Value of the record that says the partitions a share group's member shall have."""

    topic_partitions: Annotated[list[TopicPartition], Array("0+")] = field(default_factory=list)
