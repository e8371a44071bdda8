"""ShareSnapshot, a share coordinator's record (type 0): the whole state of a share partition."""

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


@message(api_key=0, versions="0")
class ShareSnapshotKey(Message):
    """Key of the record that says the whole state of a share partition."""

    group_id: Annotated[str, String("0")] = ""
    topic_id: Annotated[UUID, Uuid("0")] = ZERO_UUID
    partition: Annotated[int, Int32("0")] = 0


@struct
class StateBatch(Struct):
    """An element of ``ShareSnapshotValue.state_batches``."""

    first_offset: Annotated[int, Int64("0+")] = 0
    last_offset: Annotated[int, Int64("0+")] = 0
    delivery_state: Annotated[int, Int8("0+")] = 0
    delivery_count: Annotated[int, Int16("0+")] = 0


@message(api_key=0, versions="0", flexible="0+")
class ShareSnapshotValue(Message):
    """Value of the record that says the whole state of a share partition."""

    snapshot_epoch: Annotated[int, Int32("0+")] = 0
    state_epoch: Annotated[int, Int32("0+")] = 0
    leader_epoch: Annotated[int, Int32("0+")] = 0
    start_offset: Annotated[int, Int64("0+")] = 0
    delivery_complete_count: Annotated[int, Int32("0+", tag=0)] = -1
    create_timestamp: Annotated[int, Int64("0+")] = 0
    write_timestamp: Annotated[int, Int64("0+")] = 0
    state_batches: Annotated[list[StateBatch], Array("0+")] = field(default_factory=list)
