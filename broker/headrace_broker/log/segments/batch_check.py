"""Finds what is wrong with a batch on disk, and where the next whole batch begins.

Changes nothing: `PartitionLog` decides what to do about damage.
"""

from collections.abc import Callable, Iterator
from typing import Final

from crc32c import crc32c

from headrace_broker.log.batches import Header, read_header
from headrace_broker.log.segments.segment import Damage, LogSegment
from headrace_broker.protocol.batch_header import (
    ATTRIBUTES_POSITION,
    HEADER_SIZE,
    LENGTH_MIN,
    MAGIC_V2,
)

_CHUNK: Final = 1 << 20
_MAGIC_POSITION: Final = 16
_MAGIC: Final = bytes([MAGIC_V2])

EpochOf = Callable[[int], int]
"""The leader epoch that wrote an offset, -1 if it is not known."""


class BatchWindow:
    """A piece of a segment in memory, so that small batches do not cost a read each."""

    __slots__ = ("_data", "_end", "_segment", "_start")

    def __init__(self, segment: LogSegment, end: int) -> None:
        self._segment, self._end = segment, end
        self._data, self._start = memoryview(b""), 0

    def at(self, position: int, size: int) -> memoryview:
        """Return `size` bytes, fewer at the end of the file."""
        inside = position - self._start
        if inside < 0 or inside + size > len(self._data):
            wanted = min(max(size, _CHUNK), self._end - position)
            self._data, self._start = memoryview(self._segment.read(position, wanted)), position
            inside = 0
        return self._data[inside : inside + size]

    def crc(self, position: int, size: int) -> int:
        """Checksum a range, with only a piece of it in memory at a time."""
        crc, end = 0, position + size
        while position < end:
            piece = self.at(position, min(_CHUNK, end - position))
            if not piece:
                break
            crc = crc32c(piece, crc)
            position += len(piece)
        return crc

    def check(  # noqa: PLR0911 - one return per thing that can be wrong reads best
        self, position: int, next_offset: int, limit: int
    ) -> tuple[Header | None, str]:
        """Return the header of a whole batch, or why there is none at this position."""
        data = self.at(position, HEADER_SIZE)
        if len(data) < HEADER_SIZE:
            return None, "partial header"
        header = read_header(data)
        if header.batch_length < LENGTH_MIN:
            return None, f"batch length {header.batch_length}"
        if header.magic != MAGIC_V2:
            return None, f"magic {header.magic}"
        if position + header.size_bytes > self._end:
            return None, "partial batch"
        if header.base_offset < next_offset or header.last_offset_delta < 0:
            return None, f"offset {header.base_offset} where {next_offset} was expected"
        if header.last_offset >= limit or header.last_offset > self._segment.offset_max:
            return None, f"offset {header.last_offset} does not belong into this segment"
        if (
            self.crc(position + ATTRIBUTES_POSITION, header.size_bytes - ATTRIBUTES_POSITION)
            != header.crc
        ):
            return None, "checksum differs"
        return header, ""

    def next_whole(self, position: int, next_offset: int, limit: int) -> tuple[int, int] | None:
        """Return position and base offset of the first whole batch from `position` on, or None."""
        while position + HEADER_SIZE <= self._end:
            size = min(_CHUNK, self._end - position)
            data = bytes(self.at(position, size))
            found = data.find(_MAGIC, _MAGIC_POSITION)
            while found >= 0:
                at = position + found - _MAGIC_POSITION
                header, _ = self.check(at, next_offset, limit)
                if header is not None:
                    return at, header.base_offset
                found = data.find(_MAGIC, found + 1)
            position += max(1, size - _MAGIC_POSITION)
        return None


def find_damage(
    segment: LogSegment,
    *,
    start: tuple[int, int],
    end: tuple[int, int],
    epoch_of: EpochOf,
    stop_after: int,
) -> Iterator[Damage]:
    """Yield the damaged ranges; batches are checked by header, CRC and their neighbours' offsets.

    `start` and `end` are (position, offset) of a batch, or of the segment. The search stops at the
    first whole batch behind the position `stop_after`.

    No checksum covers a batch's offset. An offset that became too large overlaps the next batch,
    which is whole.
    """
    size, limit = end
    position, next_offset = start
    window = BatchWindow(segment, size)
    gap: tuple[int, int, int] | None = None  # position and offset before a batch that follows a gap
    while position < size and position <= stop_after:
        header, reason = window.check(position, next_offset, limit)
        if header is not None:
            epoch, found_epoch = epoch_of(header.base_offset), header.partition_leader_epoch
            if epoch not in (-1, found_epoch):
                header, reason = None, f"leader epoch {found_epoch} where {epoch} wrote"
        if header is not None:
            has_hole = header.base_offset > next_offset
            gap = (position, next_offset, header.last_offset_delta) if has_hole else None
            position, next_offset = position + header.size_bytes, header.last_offset + 1
            continue
        if gap is not None:
            before, expected, delta = gap
            follower, _ = window.check(position, expected + delta + 1, limit)
            if follower is not None and follower.base_offset == expected + delta + 1:
                yield Damage(before, position, expected, follower.base_offset, "a false offset")
                next_offset, gap = follower.base_offset, None
                continue
        # A damaged range held at least one record: a batch that says otherwise has a wrong offset.
        found = window.next_whole(position + 1, next_offset + 1, limit)
        behind, offset = (size, limit) if found is None else found
        yield Damage(position, behind, next_offset, offset, reason)
        position, next_offset, gap = behind, offset, None


def examine(
    segment: LogSegment, position: int, end: tuple[int, int], epoch_of: EpochOf
) -> list[Damage]:
    """Return the damage around a position of a segment that ends at `end`.

    The check begins at the last whole batch before the position that the index names.
    """
    size, limit = end
    window = BatchWindow(segment, size)
    base = segment.base_offset
    start = (0, base)
    entry = segment.offset_index.floor_by_value(position - 1)
    while entry is not None:
        header = window.check(entry[1], base, limit)[0] if 0 <= entry[1] < size else None
        if header is not None and header.last_offset - base == entry[0]:
            start = (entry[1], header.base_offset)
            break
        entry = segment.offset_index.floor_by_value(entry[1] - 1)
    return list(find_damage(segment, start=start, end=end, epoch_of=epoch_of, stop_after=position))
