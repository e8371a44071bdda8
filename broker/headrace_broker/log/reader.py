"""`LogReader`: whole batches from an offset on, by one `pread` in the common case.

Owns the hints that let a sequential reader go on where it stopped without a search, and the latest
small append, which every follower and every consumer at the end reads next. It must not
know who reads; the caller bounds it by the high watermark or the last stable offset.
"""

from typing import Final

from headrace_broker.log.batches import (
    OFFSET_AND_LENGTH,
    read_header,
)
from headrace_broker.log.segment import LogSegment
from headrace_broker.log.segments import LogSegments
from headrace_broker.protocol.errors import ApiError, ErrorCode

_HINTS_MAX: Final = 64
_TAIL_BYTES_MAX: Final = 2048
_NOWHERE: Final = -1
EMPTY: Final = b""


class LogReader:
    """Reads a partition's segments."""

    __slots__ = ("_end_offset", "_end_position", "_hints", "_segments", "_tail", "_tail_offset")

    def __init__(self, segments: LogSegments) -> None:
        self._segments = segments
        self._hints: dict[int, int] = {}
        self._tail = EMPTY
        self._tail_offset = self._end_offset = self._end_position = _NOWHERE

    def forget(self) -> None:
        """Drop the hints, because batches moved."""
        self._hints.clear()
        self._tail = EMPTY
        self._tail_offset = self._end_offset = _NOWHERE

    def appended(self, offset: int, end_offset: int, end_position: int, data: memoryview) -> None:
        """Take note of what was appended to the active segment."""
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
        """Return whole batches from the one that holds `offset`, all below `upper_bound`."""
        if (
            offset == self._tail_offset
            and upper_bound == self._end_offset
            and len(self._tail) <= max_bytes
        ):
            self.hint(upper_bound, self._end_position)
            return self._tail
        segment = self._segments.floor(offset)
        if segment is None:
            # Retention keeps whole segments, so the first may begin above the log start offset.
            segment = self._segments.first
        while segment is not None and segment.base_offset < upper_bound:
            start = self._position(segment, offset)
            end, next_offset = self._end(segment, upper_bound)
            if start < end:
                return self._read_within(segment, start, end, next_offset, max_bytes, at_least_one)
            # Compaction may have emptied the rest of this segment.
            segment = self._segments.after(segment)
        return EMPTY

    def _position(self, segment: LogSegment, offset: int) -> int:
        if offset <= segment.base_offset:
            return 0
        known = self._hints.get(offset)
        return segment.position_of(offset) if known is None else known

    def _end(self, segment: LogSegment, upper_bound: int) -> tuple[int, int]:
        """Return where reading this segment must stop, and the offset that lies there."""
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
        start: int,
        end: int,
        next_offset: int,
        max_bytes: int,
        at_least_one: bool,  # noqa: FBT001 - see above
    ) -> bytes | memoryview:
        if end - start <= max_bytes:
            data = segment.read(start, end - start)
            if len(data) == end - start:
                if next_offset > 0 and self._segments.active is segment:
                    self.hint(next_offset, end)
                return data
            raise _storage_error(segment, start)
        data = segment.read(start, max(max_bytes, OFFSET_AND_LENGTH.size))
        whole, following = segment.whole_batches_end(start, data)
        if whole:
            self.hint(following, start + whole)
            return memoryview(data)[:whole] if whole < len(data) else data
        if not at_least_one:
            return EMPTY
        size = OFFSET_AND_LENGTH.unpack_from(data)[1] + OFFSET_AND_LENGTH.size
        data = segment.read(start, min(size, end - start))
        if len(data) != size:
            raise _storage_error(segment, start)
        self.hint(read_header(data).last_offset + 1, start + size)
        return data


def _storage_error(segment: LogSegment, position: int) -> ApiError:
    return ApiError(
        ErrorCode.KAFKA_STORAGE_ERROR, f"{segment.path.name} holds no whole batch at {position}"
    )
