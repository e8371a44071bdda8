"""`TransactionIndex`: the aborted transactions of one segment (`.txnindex`, KIP-98).

Owns the file's entries in memory, which are few: one per aborted transaction. What a kill loses
is rebuilt from the markers in the log.
"""

import os
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from headrace_broker.log.files import failing_the_directory

_ENTRY: Final = Struct(">hqqqq")
_VERSION: Final = 0


class AbortedTransaction(NamedTuple):
    """What a read_committed reader must skip."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """Entries by ascending last offset; the file exists only once there is one."""

    __slots__ = ("_entries", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: list[AbortedTransaction] = []

    @property
    def entries(self) -> tuple[AbortedTransaction, ...]:
        """Every aborted transaction of the segment."""
        return tuple(self._entries)

    def load(self) -> bool:
        """Read the file; False when it cannot be an index. Raises LogDirectoryFailure."""
        with failing_the_directory(self.path):
            try:
                data = self.path.read_bytes()
            except FileNotFoundError:
                return True
        if len(data) % _ENTRY.size:
            return False
        self._entries = [AbortedTransaction(*fields[1:]) for fields in _ENTRY.iter_unpack(data)]
        return True

    def append(self, aborted: AbortedTransaction) -> None:
        """Add an aborted transaction, in memory and in the file."""
        self._entries.append(aborted)
        with failing_the_directory(self.path):
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(fd, _ENTRY.pack(_VERSION, *aborted))
            finally:
                os.close(fd)

    def collect(self, fetch_offset: int, upper_bound: int) -> tuple[list[AbortedTransaction], bool]:
        """Return the aborted transactions that overlap a range, and whether the search is over."""
        found: list[AbortedTransaction] = []
        for aborted in self._entries:
            if aborted.last_offset >= fetch_offset and aborted.first_offset < upper_bound:
                found.append(aborted)
            if aborted.last_stable_offset >= upper_bound:
                return found, True
        return found, False

    def truncate(self, offset: int) -> None:
        """Keep the transactions that ended below `offset`."""
        kept = [aborted for aborted in self._entries if aborted.last_offset < offset]
        if len(kept) < len(self._entries):
            self._entries = kept
            with failing_the_directory(self.path):
                os.truncate(self.path, len(kept) * _ENTRY.size)

    def clear(self) -> None:
        """Forget everything, in memory and on disk."""
        self._entries = []
        with failing_the_directory(self.path):
            self.path.unlink(missing_ok=True)
