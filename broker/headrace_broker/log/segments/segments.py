"""`LogSegments`: a partition's segments by base offset.

Owns their order and the lookup by offset, but not their files.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from headrace_broker.log.segments.segment import LogSegment


class LogSegments:
    """Ascending by base offset; the last one is the active segment."""

    __slots__ = ("_bases", "_segments")

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._segments: list[LogSegment] = []

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(self._segments)

    @property
    def active(self) -> LogSegment:
        """The segment that is appended to."""
        return self._segments[-1]

    @property
    def inactive(self) -> list[LogSegment]:
        """All but the active one."""
        return self._segments[:-1]

    @property
    def first(self) -> LogSegment:
        """The oldest one."""
        return self._segments[0]

    def add(self, segment: LogSegment) -> None:
        """Insert a segment; it replaces one with the same base offset."""
        index = bisect_left(self._bases, segment.base_offset)
        if index < len(self._bases) and self._bases[index] == segment.base_offset:
            self._segments[index] = segment
        else:
            self._bases.insert(index, segment.base_offset)
            self._segments.insert(index, segment)

    def remove(self, segment: LogSegment) -> None:
        """Take a segment out."""
        index = bisect_left(self._bases, segment.base_offset)
        if index < len(self._bases) and self._segments[index] is segment:
            del self._bases[index], self._segments[index]

    def holds(self, segment: LogSegment) -> bool:
        """Whether this very segment is part of the log."""
        index = bisect_left(self._bases, segment.base_offset)
        return index < len(self._bases) and self._segments[index] is segment

    def floor(self, offset: int) -> LogSegment | None:
        """Return the segment with the largest base offset that is not above `offset`."""
        index = bisect_right(self._bases, offset) - 1
        return self._segments[index] if index >= 0 else None

    def after(self, segment: LogSegment) -> LogSegment | None:
        """Return the next segment."""
        index = bisect_right(self._bases, segment.base_offset)
        return self._segments[index] if index < len(self._segments) else None

    def from_offset(self, offset: int) -> list[LogSegment]:
        """Return the segment that holds `offset` and all later ones."""
        return self._segments[max(0, bisect_right(self._bases, offset) - 1) :]
