"""ConsumerProtocolAssignment: a consumer's partitions, inside the classic protocol's SyncGroup."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Bytes,
    Int32,
    Message,
    String,
    Struct,
    message,
    struct,
)


@struct
class TopicPartition(Struct):
    """An element of ``ConsumerProtocolAssignment.assigned_partitions``."""

    topic: Annotated[str, String("0+")] = ""
    partitions: Annotated[list[int], Array("0+", of=Int32)] = field(default_factory=list)


@message(versions="0-3")
class ConsumerProtocolAssignment(Message):
    """A consumer's partitions, inside the classic protocol's SyncGroup."""

    assigned_partitions: Annotated[list[TopicPartition], Array("0+")] = field(default_factory=list)
    user_data: Annotated[bytes | None, Bytes("0+", nullable="0+")] = None
