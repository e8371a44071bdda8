"""`SparseIndex`: the sorted entries of one `.index` or `.timeindex` file.

Owns the file's bytes. The newest entries are buffered in memory and written many at a time, so that
an append needs no system call here. Older ones stay on disk and are found by binary search, so
memory is bounded however large the log is. Entries lost in a kill are rebuilt by recovery, which
reads the same part of the log anyway.
"""

import os
from bisect import bisect_right
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final

from headrace_broker.log.descriptor_shortage import OutOfDescriptorsError
from headrace_broker.log.files import failing_the_directory, open_file, rename_durably, sync_file

OFFSET_ENTRY: Final = Struct(">ii")
"""Relative offset (of the batch's last record), position of the batch in the `.log`."""
TIME_ENTRY: Final = Struct(">qi")
"""Largest timestamp so far, relative offset (of the last record of its batch)."""

REBUILT_SUFFIX: Final = ".tmp"
"""The suffix of an index that is being rebuilt; a start removes leftovers of a crash."""

_PENDING_MAX: Final = 512
_BLOCK_ENTRIES: Final = 256

Entry = tuple[int, int]


class SparseIndex:
    """Entries (key, value), both ascending; lookups cost O(log n) small reads at most."""

    __slots__ = ("_entry", "_last", "_pending_keys", "_pending_values", "_written", "path")

    def __init__(self, path: Path, entry: Struct) -> None:
        self.path = path
        self._entry = entry
        self._written = 0
        self._pending_keys: list[int] = []
        self._pending_values: list[int] = []
        self._last: Entry | None = None

    def load(self) -> bool:
        """Load the file; return False if it is missing or not an index."""
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return False
        if size % self._entry.size:
            return False
        self._written = size // self._entry.size
        if self._written:
            self._last = self._read(self._written - 1, 1)[0]
        return self._last is None or (self._last[0] >= 0 and self._last[1] >= 0)

    def __len__(self) -> int:
        return self._written + len(self._pending_keys)

    @property
    def last(self) -> Entry | None:
        """The newest entry."""
        return self._last

    def append(self, key: int, value: int) -> None:
        """Add an entry if its key is larger than every earlier one, as Kafka does."""
        last = self._last
        if last is not None and key <= last[0]:
            return
        self._last = (key, value)
        self._pending_keys.append(key)
        self._pending_values.append(value)
        if len(self._pending_keys) >= _PENDING_MAX:
            with suppress(OutOfDescriptorsError):  # tried again with the next entry
                self.write_pending()

    def floor(self, key: int) -> Entry | None:
        """Return the entry with the largest key that is not above `key`."""
        return self._floor(key, 0)

    def floor_by_value(self, value: int) -> Entry | None:
        """Return the entry with the largest value that is not above `value`."""
        return self._floor(value, 1)

    def write_pending(self) -> None:
        """Write buffered entries (no fsync)."""
        pairs = zip(self._pending_keys, self._pending_values, strict=True)
        data = b"".join([self._entry.pack(*pair) for pair in pairs])
        with failing_the_directory(self.path):
            fd = open_file(self.path, os.O_WRONLY | os.O_CREAT)
            try:
                position = self._written * self._entry.size
                while data:
                    count = os.pwrite(fd, data, position)
                    data, position = data[count:], position + count
                os.ftruncate(fd, position)
            finally:
                os.close(fd)
        self._written += len(self._pending_keys)
        self._pending_keys.clear()
        self._pending_values.clear()

    def is_ascending(self) -> bool:
        """Whether all entries on disk ascend: a power cut may tear the newest ones."""
        last_key, last_value = -1, -1
        for first in range(0, self._written, _PENDING_MAX):
            for key, value in self._read(first, min(_PENDING_MAX, self._written - first)):
                if key <= last_key or value < last_value:
                    return False
                last_key, last_value = key, value
        return True

    def begin_rebuild(self) -> None:
        """Drop every entry; new ones go to another file until `finish_rebuild`.

        A power cut in between leaves the old file, which is rebuilt again. If the new entries were
        written in place, they could be torn below a recovery point that promises them durable.
        """
        self.path = self.path.with_name(self.path.name + REBUILT_SUFFIX)
        self._written = 0
        self._last = None
        self._pending_keys.clear()
        self._pending_values.clear()

    def finish_rebuild(self) -> None:
        """Replace the file durably by the entries added since `begin_rebuild`."""
        self.write_pending()
        sync_file(self.path)
        path = self.path.with_name(self.path.name.removesuffix(REBUILT_SUFFIX))
        rename_durably(self.path, path)
        self.path = path

    def truncate(self, count: int) -> None:
        """Keep the first `count` entries."""
        if count < self._written:
            self._pending_keys.clear()
            self._pending_values.clear()
            self._written = count
            if self.path.exists():
                with failing_the_directory(self.path):
                    os.truncate(self.path, count * self._entry.size)
        else:
            del self._pending_keys[count - self._written :]
            del self._pending_values[count - self._written :]
        if self._pending_keys:
            self._last = (self._pending_keys[-1], self._pending_values[-1])
        else:
            self._last = self._read(self._written - 1, 1)[0] if self._written else None

    def truncate_above_value(self, value_max: int) -> None:
        """Keep the entries whose value is at most `value_max`."""
        self.truncate(self._count_not_above(value_max, 1))

    def truncate_from_key(self, key: int) -> None:
        """Keep the entries whose key is below `key`."""
        self.truncate(self._count_not_above(key - 1, 0))

    def _floor(self, target: int, column: int) -> Entry | None:
        pending = self._pending_values if column else self._pending_keys
        if pending and pending[0] <= target:
            found = bisect_right(pending, target) - 1
            return self._pending_keys[found], self._pending_values[found]
        return self._search_file(target, column)[1]

    def _count_not_above(self, target: int, column: int) -> int:
        pending = self._pending_values if column else self._pending_keys
        if pending and pending[0] <= target:
            return self._written + bisect_right(pending, target)
        return self._search_file(target, column)[0]

    def _search_file(self, target: int, column: int) -> tuple[int, Entry | None]:
        """Return how many entries on disk are not above the target, and the last of them."""
        if not self._written:
            return 0, None
        with failing_the_directory(self.path):
            fd = open_file(self.path, os.O_RDONLY)
            try:
                low, high = 0, self._written
                while high - low > _BLOCK_ENTRIES:
                    middle = (low + high) // 2
                    if self._read_from(fd, middle, 1)[0][column] <= target:
                        low = middle
                    else:
                        high = middle
                block = self._read_from(fd, low, high - low)
            finally:
                os.close(fd)
        count = bisect_right(block, target, key=lambda entry: entry[column])
        return low + count, block[count - 1] if count else None

    def _read(self, first: int, count: int) -> list[Entry]:
        with failing_the_directory(self.path):
            fd = open_file(self.path, os.O_RDONLY)
            try:
                return self._read_from(fd, first, count)
            finally:
                os.close(fd)

    def _read_from(self, fd: int, first: int, count: int) -> list[Entry]:
        size = self._entry.size
        data = os.pread(fd, count * size, first * size)
        return [(key, value) for key, value in self._entry.iter_unpack(data)]
