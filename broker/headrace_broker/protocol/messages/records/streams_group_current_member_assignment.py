"""StreamsGroupCurrentMemberAssignment, a coordinator's record (type 22).

The tasks a streams group's member has.
"""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Int8,
    Int32,
    Message,
    String,
    Struct,
    message,
    struct,
)


@message(api_key=22, versions="0")
class StreamsGroupCurrentMemberAssignmentKey(Message):
    """Key of the record that says the tasks a streams group's member has."""

    group_id: Annotated[str, String("0")] = ""
    member_id: Annotated[str, String("0")] = ""


@struct
class TaskIds(Struct):
    """An element of ``StreamsGroupCurrentMemberAssignmentValue.active_tasks`` and others."""

    subtopology_id: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)
    assignment_epochs: Annotated[list[int] | None, Array("0+", nullable="0+", tag=0, of=Int32)] = (
        field(default_factory=list)
    )


@message(api_key=22, versions="0", flexible="0+")
class StreamsGroupCurrentMemberAssignmentValue(Message):
    """Value of the record that says the tasks a streams group's member has."""

    member_epoch: Annotated[int, Int32("0+")] = 0
    previous_member_epoch: Annotated[int, Int32("0+")] = 0
    state: Annotated[int, Int8("0+")] = 0
    active_tasks: Annotated[list[TaskIds], Array("0+")] = field(default_factory=list)
    standby_tasks: Annotated[list[TaskIds], Array("0+")] = field(default_factory=list)
    warmup_tasks: Annotated[list[TaskIds], Array("0+")] = field(default_factory=list)
    active_tasks_pending_revocation: Annotated[list[TaskIds], Array("0+")] = field(
        default_factory=list
    )
    standby_tasks_pending_revocation: Annotated[list[TaskIds], Array("0+")] = field(
        default_factory=list
    )
    warmup_tasks_pending_revocation: Annotated[list[TaskIds], Array("0+")] = field(
        default_factory=list
    )
