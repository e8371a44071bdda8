"""LeaderChangeMessage: the control record that a new quorum leader appends first."""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import (
    ZERO_UUID,
    Array,
    Int16,
    Int32,
    Message,
    Struct,
    Uuid,
    message,
    struct,
)


@struct
class Voter(Struct):
    """An element of ``LeaderChangeMessage.voters`` and others."""

    voter_id: Annotated[int, Int32("0+")] = 0
    voter_directory_id: Annotated[UUID, Uuid("1+")] = ZERO_UUID


@message(versions="0-1", flexible="0+")
class LeaderChangeMessage(Message):
    """The control record that a new quorum leader appends first."""

    version: Annotated[int, Int16("0+")] = 0
    leader_id: Annotated[int, Int32("0+")] = 0
    voters: Annotated[list[Voter], Array("0+")] = field(default_factory=list)
    granting_voters: Annotated[list[Voter], Array("0+")] = field(default_factory=list)
