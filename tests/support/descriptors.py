"""A real shortage of file descriptors: the limit of a process, lowered to what it has open."""

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def limit_for(pid: int, free: int) -> int:
    """Return the limit under which a process can open just `free` more descriptors."""
    taken = open_descriptors(pid)
    number = 0
    while free or number in taken:
        free -= number not in taken
        number += 1
    return number


def open_descriptors(pid: int) -> set[int]:
    """Return the numbers of the descriptors that a process has open now."""
    found = list(Path(f"/proc/{pid}/fd").iterdir())
    # The one with which this process lists its own is closed again.
    return {int(path.name) for path in found if path.is_symlink()}


@contextmanager
def few_descriptors(free: int, pid: int = 0) -> Iterator[None]:
    """Leave a process, this one by default, only `free` file descriptors."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    low = limit_for(pid or os.getpid(), free)
    for _ in range(20 if pid else 0):
        time.sleep(0.005)  # another process may just have had a file open for a moment
        low = min(low, limit_for(pid, free))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (low, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
