"""Request and response frames: their fixed layouts, and how large a buffer a frame gets."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any

from headrace_broker.protocol.errors import DecodeError

LENGTH = Struct(">i")
HEADER = Struct(">hhih")  # api key, version, correlation id, length of the client id
PREFIX = Struct(">ii")  # frame length, correlation id
PREFIX_FLEXIBLE = Struct(">iiB")  # and no tagged fields

REQUEST_BYTES_MIN = HEADER.size

OWN_BUFFER_BYTES = 65536
_GROWTH = 4  # up to 1 MiB: a frame of this size, the usual largest, is copied twice at most
_FAST_GROWTH_BYTES_MAX = 1048576


def flexible_frame(correlation_id: int, parts: Sequence[Any]) -> list[Any]:
    """Put a flexible response's encoded body, in parts, into its frame."""
    size = sum(map(len, parts)) + PREFIX_FLEXIBLE.size - LENGTH.size
    return [PREFIX_FLEXIBLE.pack(size, correlation_id, 0), *parts]


def buffer_bytes(needed: int, filled: int) -> int:
    """Return the buffer size for a frame of `needed` bytes of which `filled` have arrived.

    It follows what has arrived: a length is announced with four bytes, by anybody.
    """
    if filled * 2 > _FAST_GROWTH_BYTES_MAX:
        return max(min(needed, filled * 2), filled + 1)
    enough = min(needed, filled * _GROWTH, _FAST_GROWTH_BYTES_MAX)
    capacity = OWN_BUFFER_BYTES
    while capacity < enough or capacity <= filled:
        capacity *= 2
    return capacity


def client_id_of(frame: memoryview, length: int) -> tuple[bytes, str]:
    """Return a request's client id as bytes and text; null is empty. Raises DecodeError."""
    if length < -1:
        raise DecodeError(f"the client id's length is {length}")
    end = HEADER.size + max(length, 0)
    if end > len(frame):
        raise DecodeError("the client id is longer than the request")
    raw = bytes(frame[HEADER.size : end])
    try:
        return raw, raw.decode()
    except UnicodeDecodeError as error:
        raise DecodeError("the client id is not UTF-8") from error
