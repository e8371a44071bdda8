"""BeginQuorumEpoch (API key 53): announce a new leader of the metadata quorum."""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import (
    ZERO_UUID,
    Array,
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
class BeginQuorumEpochRequestPartitionData(Struct):
    """An element of ``BeginQuorumEpochRequestTopicData.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    voter_directory_id: Annotated[UUID, Uuid("1+", ignorable=True)] = ZERO_UUID
    leader_id: Annotated[int, Int32("0+")] = 0
    leader_epoch: Annotated[int, Int32("0+")] = 0


@struct
class BeginQuorumEpochRequestTopicData(Struct):
    """An element of ``BeginQuorumEpochRequest.topics``."""

    topic_name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[BeginQuorumEpochRequestPartitionData], Array("0+")] = field(
        default_factory=list
    )


@struct
class LeaderEndpoint(Struct):
    """An element of ``BeginQuorumEpochRequest.leader_endpoints``."""

    name: Annotated[str, String("1+")] = ""
    host: Annotated[str, String("1+")] = ""
    port: Annotated[int, UInt16("1+")] = 0


@message(api_key=53, versions="0-1", flexible="1+")
class BeginQuorumEpochRequest(Message):
    """Asks to announce a new leader of the metadata quorum."""

    cluster_id: Annotated[str | None, String("0+", nullable="0+")] = None
    voter_id: Annotated[int, Int32("1+", ignorable=True)] = -1
    topics: Annotated[list[BeginQuorumEpochRequestTopicData], Array("0+")] = field(
        default_factory=list
    )
    leader_endpoints: Annotated[list[LeaderEndpoint], Array("1+", ignorable=True)] = field(
        default_factory=list
    )


@struct
class BeginQuorumEpochResponsePartitionData(Struct):
    """An element of ``BeginQuorumEpochResponseTopicData.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    leader_id: Annotated[int, Int32("0+")] = 0
    leader_epoch: Annotated[int, Int32("0+")] = 0


@struct
class BeginQuorumEpochResponseTopicData(Struct):
    """An element of ``BeginQuorumEpochResponse.topics``."""

    topic_name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[BeginQuorumEpochResponsePartitionData], Array("0+")] = field(
        default_factory=list
    )


@struct
class NodeEndpoint(Struct):
    """An element of ``BeginQuorumEpochResponse.node_endpoints``."""

    node_id: Annotated[int, Int32("1+")] = 0
    host: Annotated[str, String("1+")] = ""
    port: Annotated[int, UInt16("1+")] = 0


@message(api_key=53, versions="0-1", flexible="1+")
class BeginQuorumEpochResponse(Message):
    """Answers ``BeginQuorumEpochRequest``."""

    error_code: Annotated[int, Int16("0+")] = 0
    topics: Annotated[list[BeginQuorumEpochResponseTopicData], Array("0+")] = field(
        default_factory=list
    )
    node_endpoints: Annotated[list[NodeEndpoint], Array("1+", tag=0)] = field(default_factory=list)
