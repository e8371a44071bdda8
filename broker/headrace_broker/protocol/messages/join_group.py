"""JoinGroup (API key 11): join a classic group and elect its leader."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Bool,
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
class JoinGroupRequestProtocol(Struct):
    """An element of ``JoinGroupRequest.protocols``."""

    name: Annotated[str, String("0+")] = ""
    metadata: Annotated[bytes, Bytes("0+")] = b""


@message(api_key=11, versions="0-9", flexible="6+")
class JoinGroupRequest(Message):
    """Asks to join a classic group and elect its leader."""

    group_id: Annotated[str, String("0+")] = ""
    session_timeout_ms: Annotated[int, Int32("0+")] = 0
    rebalance_timeout_ms: Annotated[int, Int32("1+", ignorable=True)] = -1
    member_id: Annotated[str, String("0+")] = ""
    group_instance_id: Annotated[str | None, String("5+", nullable="5+")] = None
    protocol_type: Annotated[str, String("0+")] = ""
    protocols: Annotated[list[JoinGroupRequestProtocol], Array("0+")] = field(default_factory=list)
    reason: Annotated[str | None, String("8+", nullable="8+", ignorable=True)] = None


@struct
class JoinGroupResponseMember(Struct):
    """An element of ``JoinGroupResponse.members``."""

    member_id: Annotated[str, String("0+")] = ""
    group_instance_id: Annotated[str | None, String("5+", nullable="5+", ignorable=True)] = None
    metadata: Annotated[bytes, Bytes("0+")] = b""


@message(api_key=11, versions="0-9", flexible="6+")
class JoinGroupResponse(Message):
    """Answers ``JoinGroupRequest``."""

    throttle_time_ms: Annotated[int, Int32("2+", ignorable=True)] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    generation_id: Annotated[int, Int32("0+")] = -1
    protocol_type: Annotated[str | None, String("7+", nullable="7+", ignorable=True)] = None
    protocol_name: Annotated[str | None, String("0+", nullable="7+")] = ""
    leader: Annotated[str, String("0+")] = ""
    skip_assignment: Annotated[bool, Bool("9+")] = False
    member_id: Annotated[str, String("0+")] = ""
    members: Annotated[list[JoinGroupResponseMember], Array("0+")] = field(default_factory=list)
