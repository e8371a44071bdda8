"""`LogReader`: reads whole batches from an offset on, with one `pread` in the common case.

Owns the hints that let a sequential reader continue where it stopped without a search, and the
latest small append, which all followers and consumers at the log's end read next. It does not know
who reads; the caller limits the read to the high watermark or last stable offset.
"""

from typing import Final

from crc32c import crc32c

from headrace_broker.log.batches import OFFSET_AND_LENGTH, iterate_headers, read_header
from headrace_broker.log.segments.batch_check import EpochOf
from headrace_broker.log.segments.segment import LogSegment, SuspectedDamage
from headrace_broker.log.segments.segments import LogSegments
from headrace_broker.protocol.batch_header import (
    ATTRIBUTES_POSITION,
    HEADER_SIZE,
    LENGTH_MIN,
    MAGIC_V2,
)

_HINTS_MAX: Final = 64
_TAIL_BYTES_MAX: Final = 2048
_NOWHERE: Final = -1
_MAGIC_POSITION: Final = 16
EMPTY: Final = b""


class LogReader:
    """Reads a partition's segments.

    Each read checks its first batch's header. Batches that were on disk before this process started
    are checked by CRC when they are first read; batches that this process wrote are not.
    """

    __slots__ = (
        "_end_offset",
        "_end_position",
        "_hints",
        "_segments",
        "_tail",
        "_tail_offset",
        "epoch_of",
    )

    def __init__(self, segments: LogSegments) -> None:
        self._segments = segments
        self.epoch_of: EpochOf = lambda _offset: -1
        """Returns the leader epoch that a batch must have."""
        self._hints: dict[int, int] = {}
        self._tail = EMPTY
        self._tail_offset = self._end_offset = self._end_position = _NOWHERE

    def forget(self) -> None:
        """Drop the hints after batches have moved."""
        self._hints.clear()
        self._tail = EMPTY
        self._tail_offset = self._end_offset = _NOWHERE

    def appended(self, offset: int, end_offset: int, end_position: int, data: memoryview) -> None:
        """Record an append to the active segment."""
        self._end_offset = end_offset
        self._end_position = end_position
        if len(data) <= _TAIL_BYTES_MAX:
            self._tail = bytes(data)
            self._tail_offset = offset
        else:
            self._tail_offset = _NOWHERE

    def hint(self, offset: int, position: int) -> None:
        """Remember that the batch of `offset` begins at (or would be appended at) `position`."""
        hints = self._hints
        hints[offset] = position
        if len(hints) > _HINTS_MAX:
            del hints[next(iter(hints))]

    def read(
        self, offset: int, max_bytes: int, upper_bound: int, *, at_least_one: bool
    ) -> bytes | memoryview:
        """Return whole batches from the one that holds `offset`, all below `upper_bound`.

        Raises SuspectedDamage; `upper_bound` must not lie behind a damaged range.
        """
        if (
            offset == self._tail_offset
            and upper_bound == self._end_offset
            and len(self._tail) <= max_bytes
        ):
            self.hint(upper_bound, self._end_position)
            return self._tail
        segment = self._segments.floor(offset)
        if segment is None:
            # Retention deletes whole segments, so the first one may begin above the log start
            # offset.
            segment = self._segments.first
        while segment is not None and segment.base_offset < upper_bound:
            start = self._position(segment, offset)
            end, next_offset = self._end(segment, upper_bound)
            if start < end:
                where = (start, end, offset, next_offset)
                return self._read_within(segment, where, max_bytes, at_least_one)
            # Compaction may have removed the rest of this segment's batches.
            segment = self._segments.after(segment)
        return EMPTY

    def _position(self, segment: LogSegment, offset: int) -> int:
        if offset <= segment.base_offset:
            return 0
        known = self._hints.get(offset)
        if known is None or known < segment.unchecked[1]:
            # Unchecked batches are reached by walking over the batches before them.
            return segment.position_of(offset)
        return known

    def _end(self, segment: LogSegment, upper_bound: int) -> tuple[int, int]:
        """Return the position where reading this segment must stop, and the offset there."""
        following = self._segments.after(segment)
        if following is not None and following.base_offset <= upper_bound:
            return segment.size, following.base_offset
        if upper_bound == self._end_offset:
            return self._end_position, upper_bound
        known = self._hints.get(upper_bound)
        if known is None:
            known = segment.position_of(upper_bound)
            self.hint(upper_bound, known)
        return known, upper_bound

    def _read_within(
        self,
        segment: LogSegment,
        where: tuple[int, int, int, int],
        max_bytes: int,
        at_least_one: bool,  # noqa: FBT001 - see above
    ) -> bytes | memoryview:
        start, end, offset, next_offset = where
        if end - start <= max_bytes:
            data = segment.read(start, end - start)
            if len(data) != end - start:
                raise SuspectedDamage(segment, start)
            self._check(segment, start, data, offset, next_offset)
            if next_offset > 0 and self._segments.active is segment:
                self.hint(next_offset, end)
            return data
        data = segment.read(start, max(max_bytes, OFFSET_AND_LENGTH.size))
        whole, following = segment.whole_batches_end(start, data)
        if whole:
            found = memoryview(data)[:whole] if whole < len(data) else data
            self._check(segment, start, found, offset, next_offset)
            self.hint(following, start + whole)
            return found
        if not at_least_one:
            return EMPTY
        size = OFFSET_AND_LENGTH.unpack_from(data)[1] + OFFSET_AND_LENGTH.size
        if not HEADER_SIZE <= size <= end - start:
            raise SuspectedDamage(segment, start)
        data = segment.read(start, size)
        if len(data) != size:
            raise SuspectedDamage(segment, start)
        self._check(segment, start, data, offset, next_offset)
        self.hint(read_header(data).last_offset + 1, start + size)
        return data

    def _check(
        self,
        segment: LogSegment,
        start: int,
        data: bytes | memoryview,
        offset: int,
        limit: int,
    ) -> None:
        """Raise SuspectedDamage unless this is a run of whole batches below the offset `limit`."""
        first, last = segment.unchecked
        if start < last and start + len(data) > first:
            self._check_whole(segment, start, data, offset, limit)
        elif (
            len(data) < HEADER_SIZE
            or data[_MAGIC_POSITION] != MAGIC_V2
            or OFFSET_AND_LENGTH.unpack_from(data)[1] < LENGTH_MIN
        ):
            raise SuspectedDamage(segment, start)

    def _check_whole(
        self,
        segment: LogSegment,
        start: int,
        data: bytes | memoryview,
        offset: int,
        limit: int,
    ) -> None:
        view = memoryview(data)
        end, next_offset, has_hole = 0, segment.base_offset, False
        for at, header in iterate_headers(view):
            epoch = self.epoch_of(header.base_offset)
            if (
                at != end
                or header.magic != MAGIC_V2
                or header.base_offset < next_offset
                or header.last_offset_delta < 0
                or epoch not in (-1, header.partition_leader_epoch)
                or crc32c(view[at + ATTRIBUTES_POSITION : at + header.size_bytes]) != header.crc
            ):
                raise SuspectedDamage(segment, start + at)
            has_hole = header.base_offset > max(next_offset, offset)
            end, next_offset = at + header.size_bytes, header.last_offset + 1
            if next_offset > limit:
                raise SuspectedDamage(segment, start + at)
        if end != len(view):
            raise SuspectedDamage(segment, start + end)
        if has_hole and start + end + HEADER_SIZE <= segment.size:
            # No checksum covers a batch's offset; one that became too large overlaps the next
            # batch.
            following = read_header(segment.read(start + end, HEADER_SIZE))
            if following.base_offset < next_offset:
                raise SuspectedDamage(segment, start + end)
        first, last = segment.unchecked
        if start <= first:
            segment.unchecked = (start + end, last) if start + end < last else (0, 0)
