"""The primitives that generated code calls when a value is not of the usual short kind.

Owns varints beyond one byte, UUIDs and the skipping of unknown tagged fields.
"""

import uuid
from functools import lru_cache
from typing import Final

from .errors import DecodeError
from .types import Buffer

UINT32_MAX: Final = 2**32 - 1
# A varint's byte from here on says that another one follows.
_CONTINUES: Final = 0x80
# A struct's tagged fields beyond this are refused: Kafka has at most 9 in one struct.
TAGGED_FIELDS_MAX: Final = 128
# A tagged field is at least its tag and its size.
TAGGED_FIELD_SIZE_MIN: Final = 2


def read_varuint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read an unsigned varint of at most five bytes; return it and the position behind it."""
    first = buffer[position]
    if first < _CONTINUES:
        return first, position + 1
    return read_varuint_tail(buffer, position + 1, first)


def read_varuint_tail(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """Read the rest of an unsigned varint whose first byte said that there is more."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < _CONTINUES:
            if value > UINT32_MAX:
                raise DecodeError(f"varint {value} does not fit 32 bits")
            return value, position
    raise DecodeError("varint is longer than five bytes")


def varuint(value: int) -> bytes:
    """Encode an unsigned varint."""
    if value < _CONTINUES:
        return value.to_bytes(1, "big")
    out = bytearray()
    while value >= _CONTINUES:
        out.append(value & 0x7F | _CONTINUES)
        value >>= 7
    out.append(value)
    return bytes(out)


@lru_cache(maxsize=4096)
def uuid_of(raw: bytes) -> uuid.UUID:
    """Make a UUID of its 16 bytes; cached because the same topic ids come in every request."""
    return uuid.UUID(bytes=raw)


def tagged_count(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """Finish reading a count of tagged fields that is not zero and check it."""
    count, position = (
        (first, position) if first < _CONTINUES else read_varuint_tail(buffer, position, first)
    )
    if count > TAGGED_FIELDS_MAX or count * TAGGED_FIELD_SIZE_MIN > len(buffer) - position:
        raise DecodeError(f"{count} tagged fields in {len(buffer) - position} bytes")
    return count, position


def tagged_head(buffer: Buffer, position: int, seen: set[int]) -> tuple[int, int, int]:
    """Read a tagged field's tag and size; return the tag, its start and its end."""
    tag, position = read_varuint(buffer, position)
    size, position = read_varuint(buffer, position)
    if size > len(buffer) - position:
        raise DecodeError(f"tag {tag} claims {size} of {len(buffer) - position} bytes")
    if tag in seen:
        raise DecodeError(f"tag {tag} is repeated")
    seen.add(tag)
    return tag, position, position + size


def skip_tagged(buffer: Buffer, position: int, first: int) -> int:
    """Skip a struct's tagged fields where none is known; return the position behind them."""
    count, position = tagged_count(buffer, position, first)
    seen: set[int] = set()
    for _ in range(count):
        _, _, position = tagged_head(buffer, position, seen)
    return position
