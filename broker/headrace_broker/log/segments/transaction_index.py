"""`TransactionIndex`: the aborted transactions of one segment (`.txnindex`, KIP-98).

Keeps the file's entries in memory, which are few: one per aborted transaction. Entries lost in a
kill are rebuilt from the markers in the log.
"""

import os
from bisect import bisect_left
from itertools import islice
from operator import attrgetter
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from headrace_broker.log.descriptor_shortage import OutOfDescriptorsError
from headrace_broker.log.files import failing_the_directory, open_file, read_file, replace_file

_ENTRY: Final = Struct(">hqqqq")
_VERSION: Final = 0


class AbortedTransaction(NamedTuple):
    """What a read_committed reader must skip."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


_LAST_OFFSET: Final = attrgetter("last_offset")


class TransactionIndex:
    """Entries by ascending last offset; the file exists only once there is one."""

    __slots__ = ("_entries", "_is_unwritten", "is_lost", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_lost = False
        """Whether entries are being rebuilt from the log; the file stays until all are."""
        self._entries: list[AbortedTransaction] = []
        self._is_unwritten = False

    @property
    def entries(self) -> tuple[AbortedTransaction, ...]:
        """Every aborted transaction of the segment."""
        return tuple(self._entries)

    def load(self) -> bool:
        """Read the file; return False if it is not an index and must be rebuilt.

        Raises LogDirectoryFailure.
        """
        with failing_the_directory(self.path):
            try:
                data = read_file(self.path)
            except FileNotFoundError:
                return True
        whole = data[: len(data) - len(data) % _ENTRY.size]
        found = [AbortedTransaction(*fields[1:]) for fields in _ENTRY.iter_unpack(whole)]
        self.is_lost = len(whole) < len(data) or not _is_sound(found)
        if not self.is_lost:
            self._entries = found
        return not self.is_lost

    def begin_rebuild(self, offset: int) -> None:
        """Drop the transactions that ended at or above `offset`; they will be appended again."""
        self._entries = [aborted for aborted in self._entries if aborted.last_offset < offset]
        self.is_lost = True

    def finish_rebuild(self) -> None:
        """Replace the file by the appended entries, atomically: a kill leaves the old file."""
        if self.is_lost:
            data = b"".join(_ENTRY.pack(_VERSION, *aborted) for aborted in self._entries)
            with failing_the_directory(self.path):
                replace_file(self.path, data)
            self.is_lost = self._is_unwritten = False

    def append(self, aborted: AbortedTransaction) -> None:
        """Add an aborted transaction, in memory and in the file.

        The file may wait for a descriptor: `write_pending` comes before anything relies on it.
        """
        self._entries.append(aborted)
        if not self.is_lost and not self._is_unwritten:
            try:
                self._write(aborted)
            except OutOfDescriptorsError:
                self._is_unwritten = True

    def write_pending(self) -> None:
        """Write entries that are not in the file yet. Raises OutOfDescriptorsError."""
        if self._is_unwritten and not self.is_lost:
            data = b"".join(_ENTRY.pack(_VERSION, *aborted) for aborted in self._entries)
            replace_file(self.path, data, durable=False)
            self._is_unwritten = False

    def _write(self, aborted: AbortedTransaction) -> None:
        with failing_the_directory(self.path):
            fd = open_file(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                view = memoryview(_ENTRY.pack(_VERSION, *aborted))
                while view:
                    view = view[os.write(fd, view) :]
            finally:
                os.close(fd)

    def collect(self, fetch_offset: int, upper_bound: int) -> tuple[list[AbortedTransaction], bool]:
        """Return the aborted transactions that overlap a range, and whether the search is over."""
        found: list[AbortedTransaction] = []
        entries = self._entries
        start = bisect_left(entries, fetch_offset, key=_LAST_OFFSET)
        for aborted in islice(entries, start, None):
            if aborted.first_offset < upper_bound:
                found.append(aborted)
            if aborted.last_stable_offset >= upper_bound:
                return found, True
        return found, False

    def truncate(self, offset: int) -> None:
        """Keep the transactions that ended below `offset`."""
        kept = [aborted for aborted in self._entries if aborted.last_offset < offset]
        if len(kept) < len(self._entries):
            self._entries = kept
            if self.is_lost or self._is_unwritten:
                return
            with failing_the_directory(self.path):
                os.truncate(self.path, len(kept) * _ENTRY.size)

    def clear(self) -> None:
        """Remove all entries, in memory and on disk."""
        self._entries = []
        self._is_unwritten = False
        with failing_the_directory(self.path):
            self.path.unlink(missing_ok=True)


def _is_sound(entries: list[AbortedTransaction]) -> bool:
    """Whether entries follow one another; a power cut may leave zeros or arbitrary bytes."""
    last = -1
    for entry in entries:
        if not 0 <= entry.first_offset < entry.last_offset or entry.last_offset <= last:
            return False
        last = entry.last_offset
    return True
