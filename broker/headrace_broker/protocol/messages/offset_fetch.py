"""OffsetFetch (API key 9): look up offsets of groups."""

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
    Uuid,
    message,
    struct,
)


@struct
class OffsetFetchRequestTopic(Struct):
    """An element of ``OffsetFetchRequest.topics``."""

    name: Annotated[str, String("0-7")] = ""
    partition_indexes: Annotated[list[int], Array("0-7", of=Int32)] = field(default_factory=list)


@struct
class OffsetFetchRequestTopics(Struct):
    """An element of ``OffsetFetchRequestGroup.topics``."""

    name: Annotated[str, String("8-9", ignorable=True)] = ""
    topic_id: Annotated[UUID, Uuid("10+", ignorable=True)] = ZERO_UUID
    partition_indexes: Annotated[list[int], Array("8+", of=Int32)] = field(default_factory=list)


@struct
class OffsetFetchRequestGroup(Struct):
    """An element of ``OffsetFetchRequest.groups``."""

    group_id: Annotated[str, String("8+")] = ""
    member_id: Annotated[str | None, String("9+", nullable="9+", ignorable=True)] = None
    member_epoch: Annotated[int, Int32("9+", ignorable=True)] = -1
    topics: Annotated[list[OffsetFetchRequestTopics] | None, Array("8+", nullable="8+")] = field(
        default_factory=list
    )


@message(api_key=9, versions="1-10", flexible="6+")
class OffsetFetchRequest(Message):
    """Asks to look up offsets of groups."""

    group_id: Annotated[str, String("0-7")] = ""
    topics: Annotated[list[OffsetFetchRequestTopic] | None, Array("0-7", nullable="2-7")] = field(
        default_factory=list
    )
    groups: Annotated[list[OffsetFetchRequestGroup], Array("8+")] = field(default_factory=list)
    require_stable: Annotated[bool, Bool("7+")] = False


@struct
class OffsetFetchResponsePartition(Struct):
    """An element of ``OffsetFetchResponseTopic.partitions``."""

    partition_index: Annotated[int, Int32("0-7")] = 0
    committed_offset: Annotated[int, Int64("0-7")] = 0
    committed_leader_epoch: Annotated[int, Int32("5-7", ignorable=True)] = -1
    metadata: Annotated[str | None, String("0-7", nullable="0-7")] = ""
    error_code: Annotated[int, Int16("0-7")] = 0


@struct
class OffsetFetchResponseTopic(Struct):
    """An element of ``OffsetFetchResponse.topics``."""

    name: Annotated[str, String("0-7")] = ""
    partitions: Annotated[list[OffsetFetchResponsePartition], Array("0-7")] = field(
        default_factory=list
    )


@struct
class OffsetFetchResponsePartitions(Struct):
    """An element of ``OffsetFetchResponseTopics.partitions``."""

    partition_index: Annotated[int, Int32("8+")] = 0
    committed_offset: Annotated[int, Int64("8+")] = 0
    committed_leader_epoch: Annotated[int, Int32("8+", ignorable=True)] = -1
    metadata: Annotated[str | None, String("8+", nullable="8+")] = ""
    error_code: Annotated[int, Int16("8+")] = 0


@struct
class OffsetFetchResponseTopics(Struct):
    """An element of ``OffsetFetchResponseGroup.topics``."""

    name: Annotated[str, String("8-9", ignorable=True)] = ""
    topic_id: Annotated[UUID, Uuid("10+", ignorable=True)] = ZERO_UUID
    partitions: Annotated[list[OffsetFetchResponsePartitions], Array("8+")] = field(
        default_factory=list
    )


@struct
class OffsetFetchResponseGroup(Struct):
    """An element of ``OffsetFetchResponse.groups``."""

    group_id: Annotated[str, String("8+")] = ""
    topics: Annotated[list[OffsetFetchResponseTopics], Array("8+")] = field(default_factory=list)
    error_code: Annotated[int, Int16("8+")] = 0


@message(api_key=9, versions="1-10", flexible="6+")
class OffsetFetchResponse(Message):
    """Answers ``OffsetFetchRequest``."""

    throttle_time_ms: Annotated[int, Int32("3+", ignorable=True)] = 0
    topics: Annotated[list[OffsetFetchResponseTopic], Array("0-7")] = field(default_factory=list)
    error_code: Annotated[int, Int16("2-7", ignorable=True)] = 0
    groups: Annotated[list[OffsetFetchResponseGroup], Array("8+")] = field(default_factory=list)
