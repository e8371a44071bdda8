"""GroupMetadata, a coordinator's record (type 2): the members of a classic group."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Bytes,
    Int32,
    Int64,
    Message,
    String,
    Struct,
    message,
    struct,
)


@message(api_key=2, versions="0")
class GroupMetadataKey(Message):
    """Key of the record that says the members of a classic group."""

    group: Annotated[str, String("0")] = ""


@struct
class MemberMetadata(Struct):
    """An element of ``GroupMetadataValue.members``."""

    member_id: Annotated[str, String("0+")] = ""
    group_instance_id: Annotated[str | None, String("3+", nullable="3+", ignorable=True)] = None
    client_id: Annotated[str, String("0+")] = ""
    client_host: Annotated[str, String("0+")] = ""
    rebalance_timeout: Annotated[int, Int32("1+", ignorable=True)] = -1
    session_timeout: Annotated[int, Int32("0+")] = 0
    subscription: Annotated[bytes, Bytes("0+")] = b""
    assignment: Annotated[bytes, Bytes("0+")] = b""


@message(api_key=2, versions="0-4", flexible="4+")
class GroupMetadataValue(Message):
    """Value of the record that says the members of a classic group."""

    protocol_type: Annotated[str, String("0+")] = ""
    generation: Annotated[int, Int32("0+")] = 0
    protocol: Annotated[str | None, String("0+", nullable="0+")] = ""
    leader: Annotated[str | None, String("0+", nullable="0+")] = ""
    current_state_timestamp: Annotated[int, Int64("2+", ignorable=True)] = -1
    members: Annotated[list[MemberMetadata], Array("0+")] = field(default_factory=list)
