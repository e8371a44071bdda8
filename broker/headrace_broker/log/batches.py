"""Walking over record batches by their headers, and the few bytes that the log patches in them.

Headers are `headrace_broker.protocol.batch_header`'s. This must not look into records:
`headrace_broker.protocol.batch` does that, off the hot path.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, TypeAlias

from headrace_broker.protocol.batch_header import (
    HEADER_LAYOUT,
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
)
from headrace_broker.protocol.types import NO_TIMESTAMP, Buffer

Header: TypeAlias = BatchHeader


LENGTH_MIN: Final = HEADER_SIZE - LOG_OVERHEAD
"""The batchLength of a batch without records."""
MAX_TIMESTAMP_POSITION: Final = 35
SEQUENCE_MAX: Final = (1 << 31) - 1

OFFSET_AND_LENGTH: Final = Struct(">qi")
OFFSET_LENGTH_EPOCH: Final = Struct(">qii")

_new_tuple: Final = tuple.__new__  # a named tuple's own constructor is Python code


def read_header(buffer: Buffer, position: int = 0) -> Header:
    """Read the header at a position that has at least `HEADER_SIZE` bytes."""
    return Header._make(HEADER_LAYOUT.unpack_from(buffer, position))


def iterate_headers(buffer: bytes | memoryview) -> Iterator[tuple[int, Header]]:
    """Yield (position, header) of each whole batch of a buffer; stop where there is none."""
    position, end = 0, len(buffer)
    while position + HEADER_SIZE <= end:
        header: Header = _new_tuple(Header, HEADER_LAYOUT.unpack_from(buffer, position))
        following = position + header.size_bytes
        if header.batch_length < LENGTH_MIN or following > end:
            return
        yield position, header
        position = following


def newest_timestamp(header: Header) -> int:
    """Largest timestamp of a batch's records; one that compaction emptied has none."""
    return header.max_timestamp if header.record_count else NO_TIMESTAMP


def last_sequence(base_sequence: int, last_offset_delta: int) -> int:
    """Add to a sequence number, which wraps from 2^31-1 to 0."""
    sequence = base_sequence + last_offset_delta
    return sequence if sequence <= SEQUENCE_MAX else sequence - SEQUENCE_MAX - 1
