"""A real shortage of file descriptors: the limit of a process, lowered to what it has open."""

import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TRIES_MAX = 100


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
    if pid:
        _lower_between_steps(pid, free, hard)
    else:
        resource.prlimit(0, resource.RLIMIT_NOFILE, (limit_for(os.getpid(), free), hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def _lower_between_steps(pid: int, free: int, hard: int) -> None:
    """Lower another process's limit while it has nothing open for a moment only.

    A descriptor with a number from the limit on stays, and closing it gives nothing back: what the
    process holds in reserve would be of no use to it, as under no limit that was there before.
    """
    for _ in range(_TRIES_MAX):
        looks = []
        for _ in range(20):
            looks.append(limit_for(pid, free))
            time.sleep(0.005)
        low = min(looks)
        os.kill(pid, signal.SIGSTOP)
        try:
            _wait_stopped(pid)
            if limit_for(pid, free) <= low:
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (low, hard))
                return
        finally:
            os.kill(pid, signal.SIGCONT)
    raise AssertionError(f"process {pid} had more open than before in {_TRIES_MAX} looks")


def _wait_stopped(pid: int) -> None:
    tasks = Path(f"/proc/{pid}/task")
    while any("\nState:\tT" not in (task / "status").read_text() for task in tasks.iterdir()):
        time.sleep(0.001)
