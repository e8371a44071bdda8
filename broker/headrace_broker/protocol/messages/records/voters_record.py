"""VotersRecord: the control record that lists the quorum's voters."""

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
class Endpoint(Struct):
    """An element of ``Voter.endpoints``."""

    name: Annotated[str, String("0+")] = ""
    host: Annotated[str, String("0+")] = ""
    port: Annotated[int, UInt16("0+")] = 0


@struct
class KRaftVersionFeature(Struct):
    """The value of ``Voter.k_raft_version_feature``."""

    min_supported_version: Annotated[int, Int16("0+")] = 0
    max_supported_version: Annotated[int, Int16("0+")] = 0


@struct
class Voter(Struct):
    """An element of ``VotersRecord.voters``."""

    voter_id: Annotated[int, Int32("0+")] = 0
    voter_directory_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    endpoints: Annotated[list[Endpoint], Array("0+")] = field(default_factory=list)
    k_raft_version_feature: Annotated[KRaftVersionFeature, Nested("0+")] = field(
        default_factory=KRaftVersionFeature
    )


@message(versions="0", flexible="0+")
class VotersRecord(Message):
    """The control record that lists the quorum's voters."""

    version: Annotated[int, Int16("0+")] = 0
    voters: Annotated[list[Voter], Array("0+")] = field(default_factory=list)
