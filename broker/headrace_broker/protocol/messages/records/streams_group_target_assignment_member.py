"""StreamsGroupTargetAssignmentMember, a coordinator's record (type 21).

The tasks a streams group's member shall have.
"""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import Array, Int32, Message, String, Struct, message, struct


@message(api_key=21, versions="0")
class StreamsGroupTargetAssignmentMemberKey(Message):
    """Key of the record that says the tasks a streams group's member shall have."""

    group_id: Annotated[str, String("0")] = ""
    member_id: Annotated[str, String("0")] = ""


@struct
class TaskIds(Struct):
    """An element of ``StreamsGroupTargetAssignmentMemberValue.active_tasks`` and others."""

    subtopology_id: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@message(api_key=21, versions="0", flexible="0+")
class StreamsGroupTargetAssignmentMemberValue(Message):
    """Value of the record that says the tasks a streams group's member shall have."""

    active_tasks: Annotated[list[TaskIds], Array("0+")] = field(default_factory=list)
    standby_tasks: Annotated[list[TaskIds], Array("0+")] = field(default_factory=list)
    warmup_tasks: Annotated[list[TaskIds], Array("0+")] = field(default_factory=list)
