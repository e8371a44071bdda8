"""A page cache that is full, as on any machine that has been up for long.

Where memory is free, a virtual machine's host may not have backed it yet, and the first to write to
it pays several times what the copy costs: whichever side, in whichever round, that is.
"""

import os
from pathlib import Path

_CHUNK_BYTES = 4 << 20
_FREE_PART_MAX = 0.1  # the kernel itself keeps somewhat less free
_MEMINFO = Path("/proc/meminfo")


class PageCache:
    """Fills free memory with the pages of a file of holes, which the kernel gives up first."""

    def __init__(self, directory: Path) -> None:
        self._total = _memory("MemTotal")
        self._path = directory / "holes"
        with self._path.open("wb") as file:
            file.truncate(self._total)

    def fill(self) -> None:
        """Read holes until little memory is free."""
        buffer = bytearray(_CHUNK_BYTES)
        left = self._total
        with self._path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while left > 0 and _memory("MemFree") > _FREE_PART_MAX * self._total:
                left -= file.readinto(buffer) or left


def _memory(name: str) -> int:
    """Return a figure of /proc/meminfo in bytes."""
    line = next(each for each in _MEMINFO.read_text().splitlines() if each.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])
