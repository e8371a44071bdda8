"""ShareGroupHeartbeat (API key 76): join, keep and leave a share group."""

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
    Uuid,
    message,
    struct,
)


@message(api_key=76, versions="1", flexible="0+")
class ShareGroupHeartbeatRequest(Message):
    """Asks to join, keep and leave a share group."""

    group_id: Annotated[str, String("0+")] = ""
    member_id: Annotated[str, String("0+")] = ""
    member_epoch: Annotated[int, Int32("0+")] = 0
    rack_id: Annotated[str | None, String("0+", nullable="0+")] = None
    subscribed_topic_names: Annotated[list[str] | None, Array("0+", nullable="0+", of=String)] = (
        None
    )


@struct
class TopicPartitions(Struct):
    """An element of ``Assignment.topic_partitions``."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    partitions: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@struct
class Assignment(Struct):
    """The value of ``ShareGroupHeartbeatResponse.assignment``."""

    topic_partitions: Annotated[list[TopicPartitions], Array("0+")] = field(default_factory=list)


@message(api_key=76, versions="1", flexible="0+")
class ShareGroupHeartbeatResponse(Message):
    """Answers ``ShareGroupHeartbeatRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = None
    member_id: Annotated[str | None, String("0+", nullable="0+")] = None
    member_epoch: Annotated[int, Int32("0+")] = 0
    heartbeat_interval_ms: Annotated[int, Int32("0+")] = 0
    assignment: Annotated[Assignment | None, Nested("0+", nullable="0+")] = None
