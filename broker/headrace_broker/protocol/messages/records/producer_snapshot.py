"""ProducerSnapshot: the producers a partition remembers, as written beside its log."""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import (
    Array,
    Int16,
    Int32,
    Int64,
    Message,
    Struct,
    UInt32,
    message,
    struct,
)


@struct
class ProducerEntry(Struct):
    """An element of ``ProducerSnapshot.producer_entries``."""

    producer_id: Annotated[int, Int64("1")] = 0
    epoch: Annotated[int, Int16("1")] = 0
    last_sequence: Annotated[int, Int32("1")] = 0
    last_offset: Annotated[int, Int64("1")] = 0
    offset_delta: Annotated[int, Int32("1")] = 0
    timestamp: Annotated[int, Int64("1")] = 0
    coordinator_epoch: Annotated[int, Int32("1")] = 0
    current_txn_first_offset: Annotated[int, Int64("1")] = 0


@message(versions="1")
class ProducerSnapshot(Message):
    """The producers a partition remembers, as written beside its log."""

    crc: Annotated[int, UInt32("1")] = 0
    producer_entries: Annotated[list[ProducerEntry], Array("1")] = field(default_factory=list)
