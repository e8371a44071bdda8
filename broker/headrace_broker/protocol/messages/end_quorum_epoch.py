"""EndQuorumEpoch (API key 54): let the leader of the metadata quorum resign."""

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
class ReplicaInfo(Struct):
    """An element of ``EndQuorumEpochRequestPartitionData.preferred_candidates``."""

    candidate_id: Annotated[int, Int32("1+")] = 0
    candidate_directory_id: Annotated[UUID, Uuid("1+")] = ZERO_UUID


@struct
class EndQuorumEpochRequestPartitionData(Struct):
    """An element of ``EndQuorumEpochRequestTopicData.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    leader_id: Annotated[int, Int32("0+")] = 0
    leader_epoch: Annotated[int, Int32("0+")] = 0
    preferred_successors: Annotated[list[int], Array("0", ignorable=True, of=Int32)] = field(
        default_factory=list
    )
    preferred_candidates: Annotated[list[ReplicaInfo], Array("1+", ignorable=True)] = field(
        default_factory=list
    )


@struct
class EndQuorumEpochRequestTopicData(Struct):
    """An element of ``EndQuorumEpochRequest.topics``."""

    topic_name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[EndQuorumEpochRequestPartitionData], Array("0+")] = field(
        default_factory=list
    )


@struct
class LeaderEndpoint(Struct):
    """An element of ``EndQuorumEpochRequest.leader_endpoints``."""

    name: Annotated[str, String("1+")] = ""
    host: Annotated[str, String("1+")] = ""
    port: Annotated[int, UInt16("1+")] = 0


@message(api_key=54, versions="0-1", flexible="1+")
class EndQuorumEpochRequest(Message):
    """Asks to let the leader of the metadata quorum resign."""

    cluster_id: Annotated[str | None, String("0+", nullable="0+")] = None
    topics: Annotated[list[EndQuorumEpochRequestTopicData], Array("0+")] = field(
        default_factory=list
    )
    leader_endpoints: Annotated[list[LeaderEndpoint], Array("1+", ignorable=True)] = field(
        default_factory=list
    )


@struct
class EndQuorumEpochResponsePartitionData(Struct):
    """An element of ``EndQuorumEpochResponseTopicData.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    leader_id: Annotated[int, Int32("0+")] = 0
    leader_epoch: Annotated[int, Int32("0+")] = 0


@struct
class EndQuorumEpochResponseTopicData(Struct):
    """An element of ``EndQuorumEpochResponse.topics``."""

    topic_name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[EndQuorumEpochResponsePartitionData], Array("0+")] = field(
        default_factory=list
    )


@struct
class NodeEndpoint(Struct):
    """An element of ``EndQuorumEpochResponse.node_endpoints``."""

    node_id: Annotated[int, Int32("1+")] = 0
    host: Annotated[str, String("1+")] = ""
    port: Annotated[int, UInt16("1+")] = 0


@message(api_key=54, versions="0-1", flexible="1+")
class EndQuorumEpochResponse(Message):
    """Answers ``EndQuorumEpochRequest``."""

    error_code: Annotated[int, Int16("0+")] = 0
    topics: Annotated[list[EndQuorumEpochResponseTopicData], Array("0+")] = field(
        default_factory=list
    )
    node_endpoints: Annotated[list[NodeEndpoint], Array("1+", tag=0)] = field(default_factory=list)
