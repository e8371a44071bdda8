"""What the log reads of record batches: their headers.

`headrace_broker.protocol.batch_header` defines the headers and iterates over them. The log must not
look into records on the hot path; `headrace_broker.protocol.batch` does that elsewhere.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, TypeAlias

from headrace_broker.protocol.batch_header import (
    HEADER_LAYOUT,
    BatchHeader,
    iterate_batches,
)
from headrace_broker.protocol.types import NO_TIMESTAMP, Buffer

Header: TypeAlias = BatchHeader

SEQUENCE_MAX: Final = (1 << 31) - 1

OFFSET_AND_LENGTH: Final = Struct(">qi")


def read_header(buffer: Buffer, position: int = 0) -> Header:
    """Read the header at a position that has at least `HEADER_SIZE` bytes."""
    return Header._make(HEADER_LAYOUT.unpack_from(buffer, position))


def iterate_headers(buffer: Buffer) -> Iterator[tuple[int, Header]]:
    """Yield (position, header) of each whole batch of a buffer; stop where there is none."""
    return iterate_batches(buffer, stops_at_damage=True)


def newest_timestamp(header: Header) -> int:
    """Largest timestamp of a batch's records; one that compaction emptied has none."""
    return header.max_timestamp if header.record_count else NO_TIMESTAMP


def last_sequence(base_sequence: int, last_offset_delta: int) -> int:
    """Add to a sequence number, which wraps from 2^31-1 to 0."""
    sequence = base_sequence + last_offset_delta
    return sequence if sequence <= SEQUENCE_MAX else sequence - SEQUENCE_MAX - 1
