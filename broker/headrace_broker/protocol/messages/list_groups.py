"""ListGroups (API key 16): list groups by state and type."""

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


@message(api_key=16, versions="0-5", flexible="3+")
class ListGroupsRequest(Message):
    """Asks to list groups by state and type."""

    states_filter: Annotated[list[str], Array("4+", of=String)] = field(default_factory=list)
    types_filter: Annotated[list[str], Array("5+", of=String)] = field(default_factory=list)


@struct
class ListedGroup(Struct):
    """An element of ``ListGroupsResponse.groups``."""

    group_id: Annotated[str, String("0+")] = ""
    protocol_type: Annotated[str, String("0+")] = ""
    group_state: Annotated[str, String("4+", ignorable=True)] = ""
    group_type: Annotated[str, String("5+", ignorable=True)] = ""


@message(api_key=16, versions="0-5", flexible="3+")
class ListGroupsResponse(Message):
    """Answers ``ListGroupsRequest``."""

    throttle_time_ms: Annotated[int, Int32("1+", ignorable=True)] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    groups: Annotated[list[ListedGroup], Array("0+")] = field(default_factory=list)
