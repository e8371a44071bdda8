"""SyncGroup (API key 14): hand out the assignment that a classic group's leader made."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Bytes,
    Int16,
    Int32,
    Message,
    String,
    Struct,
    message,
    struct,
)


@struct
class SyncGroupRequestAssignment(Struct):
    """An element of ``SyncGroupRequest.assignments``."""

    member_id: Annotated[str, String("0+")] = ""
    assignment: Annotated[bytes, Bytes("0+")] = b""


@message(api_key=14, versions="0-5", flexible="4+")
class SyncGroupRequest(Message):
    """Asks to hand out the assignment that a classic group's leader made."""

    group_id: Annotated[str, String("0+")] = ""
    generation_id: Annotated[int, Int32("0+")] = 0
    member_id: Annotated[str, String("0+")] = ""
    group_instance_id: Annotated[str | None, String("3+", nullable="3+")] = None
    protocol_type: Annotated[str | None, String("5+", nullable="5+", ignorable=True)] = None
    protocol_name: Annotated[str | None, String("5+", nullable="5+", ignorable=True)] = None
    assignments: Annotated[list[SyncGroupRequestAssignment], Array("0+")] = field(
        default_factory=list
    )


@message(api_key=14, versions="0-5", flexible="4+")
class SyncGroupResponse(Message):
    """Answers ``SyncGroupRequest``."""

    throttle_time_ms: Annotated[int, Int32("1+", ignorable=True)] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    protocol_type: Annotated[str | None, String("5+", nullable="5+", ignorable=True)] = None
    protocol_name: Annotated[str | None, String("5+", nullable="5+", ignorable=True)] = None
    assignment: Annotated[bytes, Bytes("0+")] = b""
