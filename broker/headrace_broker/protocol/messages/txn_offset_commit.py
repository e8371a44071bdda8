"""TxnOffsetCommit (API key 28): store offsets of a group as part of a transaction."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Struct,
    message,
    struct,
)


@struct
class TxnOffsetCommitRequestPartition(Struct):
    """An element of ``TxnOffsetCommitRequestTopic.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    committed_offset: Annotated[int, Int64("0+")] = 0
    committed_leader_epoch: Annotated[int, Int32("2+", ignorable=True)] = -1
    committed_metadata: Annotated[str | None, String("0+", nullable="0+")] = ""


@struct
class TxnOffsetCommitRequestTopic(Struct):
    """An element of ``TxnOffsetCommitRequest.topics``."""

    name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[TxnOffsetCommitRequestPartition], Array("0+")] = field(
        default_factory=list
    )


@message(api_key=28, versions="0-5", flexible="3+")
class TxnOffsetCommitRequest(Message):
    """Asks to store offsets of a group as part of a transaction."""

    transactional_id: Annotated[str, String("0+")] = ""
    group_id: Annotated[str, String("0+")] = ""
    producer_id: Annotated[int, Int64("0+")] = 0
    producer_epoch: Annotated[int, Int16("0+")] = 0
    generation_id: Annotated[int, Int32("3+")] = -1
    member_id: Annotated[str, String("3+")] = ""
    group_instance_id: Annotated[str | None, String("3+", nullable="3+")] = None
    topics: Annotated[list[TxnOffsetCommitRequestTopic], Array("0+")] = field(default_factory=list)


@struct
class TxnOffsetCommitResponsePartition(Struct):
    """An element of ``TxnOffsetCommitResponseTopic.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0


@struct
class TxnOffsetCommitResponseTopic(Struct):
    """An element of ``TxnOffsetCommitResponse.topics``."""

    name: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[TxnOffsetCommitResponsePartition], Array("0+")] = field(
        default_factory=list
    )


@message(api_key=28, versions="0-5", flexible="3+")
class TxnOffsetCommitResponse(Message):
    """Answers ``TxnOffsetCommitRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    topics: Annotated[list[TxnOffsetCommitResponseTopic], Array("0+")] = field(default_factory=list)
