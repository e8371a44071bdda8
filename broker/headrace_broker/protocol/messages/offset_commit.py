"""OffsetCommit (API key 8): store offsets of a group."""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import (
    ZERO_UUID,
    Array,
    Int16,
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
class OffsetCommitRequestPartition(Struct):
    """An element of ``OffsetCommitRequestTopic.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    committed_offset: Annotated[int, Int64("0+")] = 0
    committed_leader_epoch: Annotated[int, Int32("6+", ignorable=True)] = -1
    committed_metadata: Annotated[str | None, String("0+", nullable="0+")] = ""


@struct
class OffsetCommitRequestTopic(Struct):
    """An element of ``OffsetCommitRequest.topics``."""

    name: Annotated[str, String("0-9", ignorable=True)] = ""
    topic_id: Annotated[UUID, Uuid("10+", ignorable=True)] = ZERO_UUID
    partitions: Annotated[list[OffsetCommitRequestPartition], Array("0+")] = field(
        default_factory=list
    )


@message(api_key=8, versions="2-10", flexible="8+")
class OffsetCommitRequest(Message):
    """Asks to store offsets of a group."""

    group_id: Annotated[str, String("0+")] = ""
    generation_id_or_member_epoch: Annotated[int, Int32("1+", ignorable=True)] = -1
    member_id: Annotated[str, String("1+", ignorable=True)] = ""
    group_instance_id: Annotated[str | None, String("7+", nullable="7+")] = None
    retention_time_ms: Annotated[int, Int64("2-4", ignorable=True)] = -1
    topics: Annotated[list[OffsetCommitRequestTopic], Array("0+")] = field(default_factory=list)


@struct
class OffsetCommitResponsePartition(Struct):
    """An element of ``OffsetCommitResponseTopic.partitions``."""

    partition_index: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0


@struct
class OffsetCommitResponseTopic(Struct):
    """An element of ``OffsetCommitResponse.topics``."""

    name: Annotated[str, String("0-9", ignorable=True)] = ""
    topic_id: Annotated[UUID, Uuid("10+", ignorable=True)] = ZERO_UUID
    partitions: Annotated[list[OffsetCommitResponsePartition], Array("0+")] = field(
        default_factory=list
    )


@message(api_key=8, versions="2-10", flexible="8+")
class OffsetCommitResponse(Message):
    """Answers ``OffsetCommitRequest``."""

    throttle_time_ms: Annotated[int, Int32("3+", ignorable=True)] = 0
    topics: Annotated[list[OffsetCommitResponseTopic], Array("0+")] = field(default_factory=list)
