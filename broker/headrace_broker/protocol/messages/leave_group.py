"""LeaveGroup (API key 13): take members out of a classic group."""

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
class MemberIdentity(Struct):
    """An element of ``LeaveGroupRequest.members``."""

    member_id: Annotated[str, String("3+")] = ""
    group_instance_id: Annotated[str | None, String("3+", nullable="3+")] = None
    reason: Annotated[str | None, String("5+", nullable="5+", ignorable=True)] = None


@message(api_key=13, versions="0-5", flexible="4+")
class LeaveGroupRequest(Message):
    """Asks to take members out of a classic group."""

    group_id: Annotated[str, String("0+")] = ""
    member_id: Annotated[str, String("0-2")] = ""
    members: Annotated[list[MemberIdentity], Array("3+")] = field(default_factory=list)


@struct
class MemberResponse(Struct):
    """An element of ``LeaveGroupResponse.members``."""

    member_id: Annotated[str, String("3+")] = ""
    group_instance_id: Annotated[str | None, String("3+", nullable="3+")] = ""
    error_code: Annotated[int, Int16("3+")] = 0


@message(api_key=13, versions="0-5", flexible="4+")
class LeaveGroupResponse(Message):
    """Answers ``LeaveGroupRequest``."""

    throttle_time_ms: Annotated[int, Int32("1+", ignorable=True)] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    members: Annotated[list[MemberResponse], Array("3+")] = field(default_factory=list)
