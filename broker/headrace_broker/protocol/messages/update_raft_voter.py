"""UpdateRaftVoter (API key 82): tell the metadata quorum a voter's new endpoints."""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import (
    ZERO_UUID,
    Array,
    Int16,
    Int32,
    Message,
    Nested,
    String,
    Struct,
    UInt16,
    Uuid,
    message,
    struct,
)


@struct
class Listener(Struct):
    """An element of ``UpdateRaftVoterRequest.listeners``."""

    name: Annotated[str, String("0+")] = ""
    host: Annotated[str, String("0+")] = ""
    port: Annotated[int, UInt16("0+")] = 0


@struct
class KRaftVersionFeature(Struct):
    """The value of ``UpdateRaftVoterRequest.k_raft_version_feature``."""

    min_supported_version: Annotated[int, Int16("0+")] = 0
    max_supported_version: Annotated[int, Int16("0+")] = 0


@message(api_key=82, versions="0", flexible="0+")
class UpdateRaftVoterRequest(Message):
    """Asks to tell the metadata quorum a voter's new endpoints."""

    cluster_id: Annotated[str | None, String("0+", nullable="0+")] = ""
    current_leader_epoch: Annotated[int, Int32("0+")] = 0
    voter_id: Annotated[int, Int32("0+")] = 0
    voter_directory_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    listeners: Annotated[list[Listener], Array("0+")] = field(default_factory=list)
    k_raft_version_feature: Annotated[KRaftVersionFeature, Nested("0+")] = field(
        default_factory=KRaftVersionFeature
    )


@struct
class CurrentLeader(Struct):
    """The value of ``UpdateRaftVoterResponse.current_leader``."""

    leader_id: Annotated[int, Int32("0+")] = -1
    leader_epoch: Annotated[int, Int32("0+")] = -1
    host: Annotated[str, String("0+")] = ""
    port: Annotated[int, Int32("0+")] = 0


@message(api_key=82, versions="0", flexible="0+")
class UpdateRaftVoterResponse(Message):
    """Answers ``UpdateRaftVoterRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    current_leader: Annotated[CurrentLeader, Nested("0+", tag=0)] = field(
        default_factory=CurrentLeader
    )
