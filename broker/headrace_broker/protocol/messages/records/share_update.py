"""ShareUpdate, a share coordinator's record (type 1): what changed since a snapshot."""

from dataclasses import field
from typing import Annotated
from uuid import UUID

from headrace_broker.protocol.schema import (
    ZERO_UUID,
    Array,
    Int8,
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


@message(api_key=1, versions="0")
class ShareUpdateKey(Message):
    """Key of the record that says what changed in a share partition."""

    group_id: Annotated[str, String("0")] = ""
    topic_id: Annotated[UUID, Uuid("0")] = ZERO_UUID
    partition: Annotated[int, Int32("0")] = 0


@struct
class StateBatch(Struct):
    """An element of ``ShareUpdateValue.state_batches``."""

    first_offset: Annotated[int, Int64("0+")] = 0
    last_offset: Annotated[int, Int64("0+")] = 0
    delivery_state: Annotated[int, Int8("0+")] = 0
    delivery_count: Annotated[int, Int16("0+")] = 0


@message(api_key=1, versions="0", flexible="0+")
class ShareUpdateValue(Message):
    """Value of the record that says what changed in a share partition."""

    snapshot_epoch: Annotated[int, Int32("0+")] = 0
    leader_epoch: Annotated[int, Int32("0+")] = 0
    start_offset: Annotated[int, Int64("0+")] = 0
    delivery_complete_count: Annotated[int, Int32("0+", tag=0)] = -1
    state_batches: Annotated[list[StateBatch], Array("0+")] = field(default_factory=list)
