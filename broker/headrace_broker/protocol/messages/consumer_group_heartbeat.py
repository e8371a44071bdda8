"""ConsumerGroupHeartbeat (API key 68).

Join, keep and leave a consumer group of the new protocol (KIP-848).
"""

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


@struct
class ConsumerGroupHeartbeatRequestTopicPartitions(Struct):
    """An element of ``ConsumerGroupHeartbeatRequest.topic_partitions``."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    partitions: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@message(api_key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatRequest(Message):
    """Asks to join, keep and leave a consumer group of the new protocol (KIP-848)."""

    group_id: Annotated[str, String("0+")] = ""
    member_id: Annotated[str, String("0+")] = ""
    member_epoch: Annotated[int, Int32("0+")] = 0
    instance_id: Annotated[str | None, String("0+", nullable="0+")] = None
    rack_id: Annotated[str | None, String("0+", nullable="0+")] = None
    rebalance_timeout_ms: Annotated[int, Int32("0+")] = -1
    subscribed_topic_names: Annotated[list[str] | None, Array("0+", nullable="0+", of=String)] = (
        None
    )
    subscribed_topic_regex: Annotated[str | None, String("1+", nullable="1+")] = None
    server_assignor: Annotated[str | None, String("0+", nullable="0+")] = None
    topic_partitions: Annotated[
        list[ConsumerGroupHeartbeatRequestTopicPartitions] | None, Array("0+", nullable="0+")
    ] = None


@struct
class ConsumerGroupHeartbeatResponseTopicPartitions(Struct):
    """An element of ``Assignment.topic_partitions``."""

    topic_id: Annotated[UUID, Uuid("0+")] = ZERO_UUID
    partitions: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@struct
class Assignment(Struct):
    """The value of ``ConsumerGroupHeartbeatResponse.assignment``."""

    topic_partitions: Annotated[
        list[ConsumerGroupHeartbeatResponseTopicPartitions], Array("0+")
    ] = field(default_factory=list)


@message(api_key=68, versions="0-1", flexible="0+")
class ConsumerGroupHeartbeatResponse(Message):
    """Answers ``ConsumerGroupHeartbeatRequest``."""

    throttle_time_ms: Annotated[int, Int32("0+")] = 0
    error_code: Annotated[int, Int16("0+")] = 0
    error_message: Annotated[str | None, String("0+", nullable="0+")] = None
    member_id: Annotated[str | None, String("0+", nullable="0+")] = None
    member_epoch: Annotated[int, Int32("0+")] = 0
    heartbeat_interval_ms: Annotated[int, Int32("0+")] = 0
    assignment: Annotated[Assignment | None, Nested("0+", nullable="0+")] = None
