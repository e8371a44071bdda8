"""AddRaftVoter (API key 80): add a voter to the metadata quorum."""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import (
    ZERO_UUID,
    Array,
    Bool,
    Int16,
    Int32,
    Message,
    String,
    Struct,
    UInt16,
    Uuid,
    message,
    struct,
)


@struct
class Listener(Struct):
    """An element of ``AddRaftVoterRequest.listeners``."""

    name: Annotated[str, String("0+")] = ""
    host: Annotated[str, String("0+")] = ""
    port: Annotated[int, UInt16("0+")] = 0


@message(api_key=80, versions="0-1", flexible="0+")
class AddRaftVoterRequest(Message):
    """Asks to add a voter to the metadata quorum."""

    cluster_id: Annotated[str | None, String("0+", nullable="0+")] = ""
    timeout_ms: Annotated[int, Int32("0+")] = 0
    voter_id: Annotated[int, Int32("0+")] = 0
    voter_directory_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    listeners: Annotated[list[Listener], Array("0+")] = field(default_factory=list)
    ack_when_committed: Annotated[bool, Bool("1+")] = True


@message(api_key=80, versions="0-1", flexible="0+")
class AddRaftVoterResponse(Message):
    """Answers ``AddRaftVoterRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+", ignorable=True)] = ""
