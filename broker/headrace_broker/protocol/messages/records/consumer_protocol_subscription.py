"""ConsumerProtocolSubscription: a consumer's wishes, inside the classic protocol's JoinGroup."""

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
    """An element of ``ConsumerProtocolSubscription.owned_partitions``."""

    topic: Annotated[str, String("1+")] = ""
    partitions: Annotated[list[int], Array("1+", of=Int32)] = field(default_factory=list)


@message(versions="0-3")
class ConsumerProtocolSubscription(Message):
    """A consumer's wishes, inside the classic protocol's JoinGroup."""

    topics: Annotated[list[str], Array("0+", of=String)] = field(default_factory=list)
    user_data: Annotated[bytes | None, Bytes("0+", nullable="0+")] = None
    owned_partitions: Annotated[list[TopicPartition], Array("1+", ignorable=True)] = field(
        default_factory=list
    )
    generation_id: Annotated[int, Int32("2+", ignorable=True)] = -1
    rack_id: Annotated[str | None, String("3+", nullable="3+", ignorable=True)] = None
