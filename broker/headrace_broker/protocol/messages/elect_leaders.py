"""ElectLeaders (API key 43): elect leaders of partitions, preferred or unclean."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Int8,
    Int16,
    Int32,
    Message,
    String,
    Struct,
    message,
    struct,
)


@struct
class TopicPartitions(Struct):
    """An element of ``ElectLeadersRequest.topic_partitions``."""

    topic: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@message(api_key=43, versions="0-2", flexible="2+")
class ElectLeadersRequest(Message):
    """Asks to elect leaders of partitions, preferred or unclean."""

    election_type: Annotated[int, Int8("1+")] = 0
    topic_partitions: Annotated[list[TopicPartitions] | None, Array("0+", nullable="0+")] = field(
        default_factory=list
    )
    timeout_ms: Annotated[int, Int32("0+")] = 60000


@struct
class PartitionResult(Struct):
    """An element of ``ReplicaElectionResult.partition_result``."""

    partition_id: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = ""


@struct
class ReplicaElectionResult(Struct):
    """An element of ``ElectLeadersResponse.replica_election_results``."""

    topic: Annotated[str, String("0+")] = ""
    partition_result: Annotated[list[PartitionResult], Array("0+")] = field(default_factory=list)


@message(api_key=43, versions="0-2", flexible="2+")
class ElectLeadersResponse(Message):
    """Answers ``ElectLeadersRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("1+")] = 0
    replica_election_results: Annotated[list[ReplicaElectionResult], Array("0+")] = field(
        default_factory=list
    )
