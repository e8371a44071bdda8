"""DescribeGroups (API key 15): describe groups of the classic protocol."""

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


@message(api_key=15, versions="0-6", flexible="5+")
class DescribeGroupsRequest(Message):
    """Asks to describe groups of the classic protocol."""

    groups: Annotated[list[str], Array("0+", of=String)] = field(default_factory=list)
    include_authorized_operations: Annotated[bool, Bool("3+")] = False


@struct
class DescribedGroupMember(Struct):
    """An element of ``DescribedGroup.members``."""

    member_id: Annotated[str, String("0+")] = ""
    group_instance_id: Annotated[str | None, String("4+", nullable="4+", ignorable=True)] = None
    client_id: Annotated[str, String("0+")] = ""
    client_host: Annotated[str, String("0+")] = ""
    member_metadata: Annotated[bytes, Bytes("0+")] = b""
    member_assignment: Annotated[bytes, Bytes("0+")] = b""


@struct
class DescribedGroup(Struct):
    """An element of ``DescribeGroupsResponse.groups``."""

    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("6+", nullable="6+")] = None
    group_id: Annotated[str, String("0+")] = ""
    group_state: Annotated[str, String("0+")] = ""
    protocol_type: Annotated[str, String("0+")] = ""
    protocol_data: Annotated[str, String("0+")] = ""
    members: Annotated[list[DescribedGroupMember], Array("0+")] = field(default_factory=list)
    authorized_operations: Annotated[int, Int32("3+")] = -2147483648


@message(api_key=15, versions="0-6", flexible="5+")
class DescribeGroupsResponse(Message):
    """Answers ``DescribeGroupsRequest``."""

    throttle_time_ms: Annotated[int, Int32("1+", ignorable=True)] = 0
    groups: Annotated[list[DescribedGroup], Array("0+")] = field(default_factory=list)
