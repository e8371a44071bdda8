"""Vote (API key 52): ask for a vote, or a pre-vote, in the metadata quorum."""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import (
    ZERO_UUID,
    Array,
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Struct,
    UInt16,
    Uuid,
    message,
    struct,
)


@struct
class VoteRequestPartitionData(Struct):
    """An element of ``VoteRequestTopicData.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    replica_epoch: Annotated[int, Int32("0+")] = 0
    replica_id: Annotated[int, Int32("0+")] = 0
    replica_directory_id: Annotated[UUID, Uuid("1+", ignorable=True)] = ZERO_UUID
    voter_directory_id: Annotated[UUID, Uuid("1+", ignorable=True)] = ZERO_UUID
    last_offset_epoch: Annotated[int, Int32("0+")] = 0
    last_offset: Annotated[int, Int64("0+")] = 0
    pre_vote: Annotated[bool, Bool("2+")] = False


@struct
class VoteRequestTopicData(Struct):
    """An element of ``VoteRequest.topics``."""

    topic_name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[VoteRequestPartitionData], Array("0+")] = field(default_factory=list)


@message(api_key=52, versions="0-2", flexible="0+")
class VoteRequest(Message):
    """Asks to ask for a vote, or a pre-vote, in the metadata quorum."""

    cluster_id: Annotated[str | None, String("0+", nullable="0+")] = None
    voter_id: Annotated[int, Int32("1+", ignorable=True)] = -1
    topics: Annotated[list[VoteRequestTopicData], Array("0+")] = field(default_factory=list)


@struct
class VoteResponsePartitionData(Struct):
    """An element of ``VoteResponseTopicData.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    leader_id: Annotated[int, Int32("0+")] = 0
    leader_epoch: Annotated[int, Int32("0+")] = 0
    vote_granted: Annotated[bool, Bool("0+")] = False


@struct
class VoteResponseTopicData(Struct):
    """An element of ``VoteResponse.topics``."""

    topic_name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[VoteResponsePartitionData], Array("0+")] = field(
        default_factory=list
    )


@struct
class NodeEndpoint(Struct):
    """An element of ``VoteResponse.node_endpoints``."""

    node_id: Annotated[int, Int32("1+")] = 0
    host: Annotated[str, String("1+")] = ""
    port: Annotated[int, UInt16("1+")] = 0


@message(api_key=52, versions="0-2", flexible="0+")
class VoteResponse(Message):
    """Answers ``VoteRequest``."""

    error_code: Annotated[int, Int16("0+")] = 0
    topics: Annotated[list[VoteResponseTopicData], Array("0+")] = field(default_factory=list)
    node_endpoints: Annotated[list[NodeEndpoint], Array("1+", tag=0)] = field(default_factory=list)
