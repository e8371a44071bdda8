"""What a replica's files say, read from outside."""

import contextvars
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace_broker.log.markers import read_marker
from headrace_broker.protocol.batch_header import HEADER_SIZE, BatchHeader, parse_batch_header


def data_of(segment: Any) -> bytes:
    """Return a segment's bytes. They are read as by nobody: no broker's disk fails for them."""
    return contextvars.Context().run(Path(segment.path).read_bytes)[: segment.size]


def batches_of(log: Any, offset: int) -> Iterator[BatchHeader]:
    """Yield the headers of the batches of a `PartitionLog` that end at or above an offset."""
    segments = list(log.segments)
    for place, segment in enumerate(segments):
        if place + 1 < len(segments) and segments[place + 1].base_offset <= offset:
            continue
        data = data_of(segment)
        start = 0
        while start + HEADER_SIZE <= len(data):
            header = parse_batch_header(data, start)
            if header.base_offset + header.last_offset_delta >= offset:
                yield header
            start += header.size_bytes


def batches_with_markers(log: Any) -> Iterator[tuple[BatchHeader, int | None]]:
    """Yield all batches' headers; with a transaction's marker its kind, else None."""
    for segment in log.segments:
        data = data_of(segment)
        start = 0
        while start + HEADER_SIZE <= len(data):
            header = parse_batch_header(data, start)
            marker = (
                read_marker(data[start : start + header.size_bytes]) if header.is_control else None
            )
            yield header, None if marker is None else marker[0]
            start += header.size_bytes


def position_of(segment: Any, offset: int) -> int:
    """Return where the first batch begins that ends at or above an offset, else the file's end."""
    data = data_of(segment)
    start = 0
    while start + HEADER_SIZE <= len(data):
        header = parse_batch_header(data, start)
        if header.base_offset + header.last_offset_delta >= offset:
            return start
        start += header.size_bytes
    return start
