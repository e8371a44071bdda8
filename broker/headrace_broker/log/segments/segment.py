"""`LogSegment`: one `.log` file and its `.index`, `.timeindex` and `.txnindex`.

Owns the bytes from its base offset to the next segment's, the positions of batches, and the largest
timestamp. It does not decide what may be appended, read or deleted.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from struct import pack
from typing import Final, NamedTuple

from crc32c import crc32c

from headrace_broker.log.batches import OFFSET_AND_LENGTH, Header, newest_timestamp, read_header
from headrace_broker.log.files import (
    LogDirectoryFailure,
    failing_the_directory,
    finish_write,
    open_file,
    sync_file,
    undo_write,
)
from headrace_broker.log.segments.sparse_index import OFFSET_ENTRY, TIME_ENTRY, SparseIndex
from headrace_broker.log.segments.transaction_index import TransactionIndex
from headrace_broker.protocol.batch_header import (
    ATTRIBUTES_POSITION,
    HEADER_SIZE,
    LEADER_EPOCH_POSITION,
    LENGTH_MIN,
    MAGIC_V2,
)
from headrace_broker.protocol.types import (
    NO_TIMESTAMP,
)

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TXN_INDEX_SUFFIX: Final = ".txnindex"
SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

RELATIVE_OFFSET_MAX: Final = (1 << 31) - 1
POSITION_MAX: Final = (1 << 31) - 1
_SCAN_CHUNK: Final = 4096


def file_name(base_offset: int, suffix: str) -> str:
    """Kafka's file name: the base offset in 20 digits."""
    return f"{base_offset:020d}{suffix}"


class Damage(NamedTuple):
    """A range of a segment that holds no whole batches."""

    start: int
    """Position in the `.log`; `end` is one, too."""
    end: int
    first_offset: int
    next_offset: int
    """The records from `first_offset` up to this offset cannot be read."""
    reason: str


class SuspectedDamage(Exception):  # noqa: N818 - nothing is certain before the log has looked
    """A reader found bytes that are no batch; the log must check what is wrong there."""

    def __init__(self, segment: "LogSegment", position: int) -> None:
        super().__init__(f"{segment.path} holds no whole batch at {position}")
        self.segment = segment
        self.position = position


class LogSegment:
    """A run of batches from `base_offset` on."""

    __slots__ = (
        "_bytes_since_index",
        "_fd",
        "_index_interval",
        "base_offset",
        "created_ms",
        "damages",
        "first_timestamp",
        "max_timestamp",
        "max_timestamp_offset",
        "offset_index",
        "offset_max",
        "path",
        "size",
        "time_index",
        "transaction_index",
        "unchecked",
    )

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        index_interval: int,
        now_ms: int,
        temporary_suffix: str = "",
    ) -> None:
        self.base_offset = base_offset
        self.offset_max = base_offset + RELATIVE_OFFSET_MAX
        """The last offset that can be written relative to the base offset."""
        paths = [
            directory / (file_name(base_offset, suffix) + temporary_suffix)
            for suffix in SEGMENT_SUFFIXES
        ]
        self.path = paths[0]
        self.offset_index = SparseIndex(paths[1], OFFSET_ENTRY)
        self.time_index = SparseIndex(paths[2], TIME_ENTRY)
        self.transaction_index = TransactionIndex(paths[3])
        self.size = 0
        self.created_ms = now_ms
        self.first_timestamp: int = NO_TIMESTAMP
        self.max_timestamp: int = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self._index_interval = index_interval
        self.damages: tuple[Damage, ...] = ()
        """The known damage, ascending; iteration over the batches skips it."""
        self.unchecked = (0, 0)
        """Positions that are unchecked since the start; this process wrote all others."""
        self._bytes_since_index = 0
        self._fd = -1

    # ---- append

    def write(self, data: memoryview) -> int:
        """Append bytes with one system call; return their position."""
        position = self.size
        fd = self._fd if self._fd >= 0 else self._open()
        try:
            written = os.pwrite(fd, data, position)
        except OSError as error:
            undo_write(fd, position, self.path, error)
        if written != len(data):
            finish_write(fd, data, position, self.path)
        self.size = position + len(data)
        return position

    def write_parts(self, head: bytes, tail: memoryview) -> int:
        """Append a new head and an immutable tail, with one system call."""
        position = self.size
        fd = self._fd if self._fd >= 0 else self._open()
        try:
            written = os.pwritev(fd, [head, tail], position)
        except OSError as error:
            undo_write(fd, position, self.path, error)
        size = len(head) + len(tail)
        if written != size:
            finish_write(fd, memoryview(b"".join((head, tail))), position, self.path)
        self.size = position + size
        return position

    def write_epoch(self, position: int, epoch: int) -> None:
        """Give the batch at a position another leader epoch, which its checksum does not cover."""
        with failing_the_directory(self.path):
            fd = self._fd if self._fd >= 0 else self._open()
            os.pwrite(fd, pack(">i", epoch), position + LEADER_EPOCH_POSITION)

    def note_batch(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Record a batch at `position`: timestamps and the sparse indexes.

        As Kafka's LogSegment.append: an index entry names the *last* offset of the batch that
        begins at its position.
        """
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self._bytes_since_index > self._index_interval:
            self.offset_index.append(last_offset - self.base_offset, position)
            self._append_time_index()
            self._bytes_since_index = 0
        elif position == 0:
            self.first_timestamp = max_timestamp
        self._bytes_since_index += size

    def _append_time_index(self) -> None:
        if self.max_timestamp >= 0:
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    # ---- read

    def read(self, position: int, size: int) -> bytes:
        """Read up to `size` bytes with one system call."""
        fd = self._fd if self._fd >= 0 else self._open()
        try:
            return os.pread(fd, size, position)
        except OSError as error:
            raise LogDirectoryFailure(self.path, str(error)) from error

    def headers(
        self, position: int, end: int | None = None, *, is_lenient: bool = False
    ) -> Iterator[tuple[int, Header]]:
        """Yield (position, header) of the batches from a batch's position on.

        Reads small pieces, so it is cheap for small and large batches. Known damage is skipped.
        Raises SuspectedDamage where no batch can be; with `is_lenient` it stops there.
        """
        stop = self.size if end is None else end
        chunk, chunk_start = b"", 0
        next_offset = self.base_offset
        while position + HEADER_SIZE <= stop:
            if self.damages and (behind := self.behind_damage(position)) > position:
                position = behind
                continue
            inside = position - chunk_start
            if inside < 0 or inside + HEADER_SIZE > len(chunk):
                chunk_start, inside = position, 0
                chunk = self.read(position, min(_SCAN_CHUNK, stop - position))
                if len(chunk) < HEADER_SIZE:
                    break  # the file is shorter than it was
            header = read_header(chunk, inside)
            if (
                header.batch_length < LENGTH_MIN
                or header.magic != MAGIC_V2
                or header.base_offset < next_offset
                or header.last_offset_delta < 0
                or position + header.size_bytes > self.size
            ):
                break
            yield position, header
            position += header.size_bytes
            next_offset = header.last_offset + 1
        if position < stop and not is_lenient and self.behind_damage(position) == position:
            raise SuspectedDamage(self, position)

    def behind_damage(self, position: int) -> int:
        """Return the end of the damage that contains a position, else the position itself."""
        for damage in self.damages:
            if damage.start <= position < damage.end:
                return damage.end
        return position

    def position_of(self, offset: int, *, is_lenient: bool = False) -> int:
        """Position of the first batch whose last offset is at or above `offset`, else the size.

        If the offset's batch is damaged, that is where the damage begins.
        """
        for damage in self.damages:
            if damage.first_offset <= offset < damage.next_offset:
                return damage.start
        entry = self.offset_index.floor(offset - self.base_offset)
        if entry is not None and not 0 <= entry[1] < self.size:
            if not is_lenient:
                raise SuspectedDamage(self, 0)
            entry = None
        for position, header in self.headers(entry[1] if entry else 0, is_lenient=is_lenient):
            if entry is not None:
                named = self.base_offset + entry[0]
                is_false = not header.base_offset <= named <= header.last_offset
                if is_false and not is_lenient and self.behind_damage(entry[1]) == entry[1]:
                    raise SuspectedDamage(self, entry[1])
                entry = None
            if header.last_offset >= offset:
                return position
        return self.size

    def read_batch(self, position: int, header: Header) -> bytes:
        """Read one batch whose records are needed; raises SuspectedDamage."""
        batch = self.read(position, header.size_bytes)
        if len(batch) != header.size_bytes or crc32c(batch[ATTRIBUTES_POSITION:]) != header.crc:
            raise SuspectedDamage(self, position)
        return batch

    def note_damage(self, found: Damage) -> None:
        """Skip a range from now on, merged with known damage."""
        first, last = found.start, max(found.end, found.start + 1)
        kept = [each for each in self.damages if each.end < first or each.start >= last]
        self.damages = tuple(sorted((*kept, found)))

    def whole_batches_end(self, start: int, data: bytes) -> tuple[int, int]:
        """Return how many of the bytes read at `start` are whole batches, and the next offset.

        (0, -1) when not even the first is whole.
        """
        position = 0
        entry = self.offset_index.floor_by_value(start + len(data) - HEADER_SIZE)
        if entry is not None and entry[1] > start:
            position = entry[1] - start
        end, last_start = position, -1
        limit = len(data)
        unpack = OFFSET_AND_LENGTH.unpack_from
        while end + HEADER_SIZE <= limit:
            size = unpack(data, end)[1] + 12
            if end + size > limit or size < HEADER_SIZE:
                break
            last_start, end = end, end + size
        if last_start < 0:
            # The indexed batch itself was cut: if anything is whole, it lies before that batch.
            return (end, self._next_offset_at(start + end)) if end else (0, -1)
        return end, read_header(data, last_start).last_offset + 1

    def _next_offset_at(self, position: int) -> int:
        return int(OFFSET_AND_LENGTH.unpack(self.read(position, 12))[0])

    # ---- change

    def end_below(self, offset: int) -> tuple[int, int]:
        """Return position and offset of the end of the batches that are wholly below `offset`.

        Raises SuspectedDamage.
        """
        position, next_offset = self.position_of(offset), self.base_offset
        entry = self.offset_index.floor_by_value(position - 1)
        for _, header in self.headers(entry[1] if entry else 0, position):
            next_offset = header.last_offset + 1
        ends = [each.next_offset for each in self.damages if each.start < position]
        return position, max([next_offset, *ends])

    def truncate(self, position: int, next_offset: int) -> None:
        """Cut at a batch's position, before which every offset is below `next_offset`."""
        with failing_the_directory(self.path):
            os.ftruncate(self._fd if self._fd >= 0 else self._open(), position)
        self.size = position
        self.damages = tuple(each for each in self.damages if each.start < position)
        self.unchecked = (min(self.unchecked[0], position), min(self.unchecked[1], position))
        relative = next_offset - self.base_offset
        self.offset_index.truncate_from_key(relative)
        self.offset_index.truncate_above_value(position - 1)
        self.time_index.truncate_above_value(relative - 1)
        self.transaction_index.truncate(next_offset)
        self.load_tail()

    def load_tail(self, *, is_lenient: bool = False) -> int:
        """Learn timestamps and the next offset from the indexes and the few headers behind them.

        Raises SuspectedDamage.
        """
        last_time = self.time_index.last
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        if last_time is not None:
            self.max_timestamp = last_time[0]
            self.max_timestamp_offset = self.base_offset + last_time[1]
        last_entry = self.offset_index.last
        start = last_entry[1] if last_entry else 0
        next_offset, self._bytes_since_index = self.base_offset, 0
        for position, header in self.headers(start, is_lenient=is_lenient):
            if position == start and last_entry is not None and not is_lenient:
                # No checksum covers a batch's offset; compare it with the index.
                named = self.base_offset + last_entry[0]
                if not header.base_offset <= named <= header.last_offset:
                    raise SuspectedDamage(self, position)
            newest = newest_timestamp(header)
            if newest > self.max_timestamp:
                self.max_timestamp = newest
                self.max_timestamp_offset = header.last_offset
            self._bytes_since_index += header.size_bytes
            next_offset = header.last_offset + 1
        if self.damages:
            next_offset = max(next_offset, self.damages[-1].next_offset)
        self.first_timestamp = NO_TIMESTAMP
        if self.size >= HEADER_SIZE:
            self.first_timestamp = read_header(self.read(0, HEADER_SIZE)).max_timestamp
        return next_offset

    def become_inactive(self) -> None:
        """Write the indexes to disk, with the last time entry that lookups need."""
        self._append_time_index()
        self.write_indexes()

    def drop_cached(self, position: int, size: int) -> None:
        """Have the next read of a range come from the disk, if the kernel supports that."""
        fd = self._fd if self._fd >= 0 else self._open()
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, position, size, os.POSIX_FADV_DONTNEED)

    def write_indexes(self) -> None:
        """Write pending index entries to their files. Raises OutOfDescriptorsError."""
        self.offset_index.write_pending()
        self.time_index.write_pending()
        self.transaction_index.write_pending()

    def sync(self) -> None:
        """Make everything written so far durable; files deleted in the meantime are ignored."""
        for path in self.paths():
            sync_file(path)

    @property
    def last_modified_ms(self) -> int:
        """When the `.log` file last changed: retention uses this if no record has a timestamp."""
        with failing_the_directory(self.path):
            return self.path.stat().st_mtime_ns // 1_000_000

    @property
    def largest_timestamp(self) -> int:
        """The largest record timestamp, or the file's age if records have none."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.last_modified_ms

    def paths(self) -> list[Path]:
        """Every file that a segment may have."""
        indexes = (self.offset_index, self.time_index, self.transaction_index)
        return [self.path, *(index.path for index in indexes)]

    def renamed(self, directory: Path) -> None:
        """Continue under the folder's new name."""
        self.path = directory / self.path.name
        for index in (self.offset_index, self.time_index, self.transaction_index):
            index.path = directory / index.path.name

    def hold_open(self) -> None:
        """Take the file descriptor now that appends and reads will need."""
        if self._fd < 0:
            self._open()

    def create(self) -> None:
        """Create the `.log` file."""
        self._open(os.O_CREAT)

    def _open(self, flags: int = 0) -> int:
        with failing_the_directory(self.path):
            self._fd = open_file(self.path, os.O_RDWR | flags)
        return self._fd

    def close(self) -> None:
        """Close the file descriptor; the next use opens it again."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
