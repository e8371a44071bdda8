"""QuorumStateData: a voter's durable epoch, leader and vote."""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import (
    ZERO_UUID,
    Array,
    Int32,
    Int64,
    Message,
    String,
    Struct,
    Uuid,
    message,
    struct,
)


@struct
class Voter(Struct):
    """An element of ``QuorumStateData.current_voters``."""

    voter_id: Annotated[int, Int32("0")] = 0


@message(versions="0-1", flexible="0+")
class QuorumStateData(Message):
    """A voter's durable epoch, leader and vote."""

    cluster_id: Annotated[str, String("0")] = ""
    leader_id: Annotated[int, Int32("0+")] = -1
    leader_epoch: Annotated[int, Int32("0+")] = -1
    voted_id: Annotated[int, Int32("0+")] = -1
    voted_directory_id: Annotated[UUID, Uuid("1+")] = ZERO_UUID
    applied_offset: Annotated[int, Int64("0")] = 0
    current_voters: Annotated[list[Voter] | None, Array("0", nullable="0")] = field(
        default_factory=list
    )
