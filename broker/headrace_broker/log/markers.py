"""Transaction markers: the one record of a control batch that ends a transaction (KIP-98).

Owns reading a marker's type and coordinator epoch from the batch's bytes.
"""

from enum import IntEnum, unique
from struct import error, unpack_from

from headrace_broker.log.batches import HEADER_SIZE


@unique
class ControlType(IntEnum):
    """int16 in a control record's key; others than these two do not concern producers."""

    ABORT = 0
    COMMIT = 1


def read_marker(batch: bytes | memoryview) -> tuple[ControlType, int] | None:
    """Return (type, coordinator epoch) of a control batch, or None for another kind of control."""
    try:
        position = HEADER_SIZE
        _, position = _varint(batch, position)  # length
        position += 1  # attributes
        _, position = _varint(batch, position)  # timestamp delta
        _, position = _varint(batch, position)  # offset delta
        key_size, position = _varint(batch, position)
        _, kind = unpack_from(">hh", batch, position)
        position += key_size
        _, position = _varint(batch, position)  # value size
        if kind not in (ControlType.ABORT, ControlType.COMMIT):
            return None
        _, coordinator_epoch = unpack_from(">hi", batch, position)
    except (error, IndexError):
        return None
    return ControlType(kind), coordinator_epoch


def _varint(buffer: bytes | memoryview, position: int) -> tuple[int, int]:
    """Read a zigzag varint; return (value, position after it)."""
    value = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the continuation bit
            return (value >> 1) ^ -(value & 1), position
        shift += 7
