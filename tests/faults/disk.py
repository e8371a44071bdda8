"""A small disk of the test's own: a tmpfs, mounted by root and unmounted afterwards."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def can_mount() -> bool:
    """Whether this process may mount at all."""
    return os.geteuid() == 0 and Path("/proc/self/ns/mnt").exists()


@contextmanager
def small_disk(directory: Path, megabytes: int) -> Iterator[Path]:
    """Mount a tmpfs at `directory`; `OSError` when the kernel does not let us."""
    directory.mkdir(parents=True, exist_ok=True)
    options = f"size={megabytes}m,mode=700"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)]
    mounted = subprocess.run(command, check=False, capture_output=True, text=True)
    if mounted.returncode != 0:
        raise OSError(f"mount: {mounted.stderr.strip()}")
    try:
        yield directory
    finally:
        # Lazily: a process that is just ending may still hold a file.
        subprocess.run(["umount", "-l", str(directory)], check=True)


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Refuse every write to a mounted disk, as a kernel does that found damage in it."""
    _remount(directory, "ro")
    try:
        yield
    finally:
        _remount(directory, "rw")


def _remount(directory: Path, how: str) -> None:
    command = ["mount", "-o", f"remount,{how}", str(directory)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"mount: {done.stderr.strip()}")


def fill(directory: Path) -> Path:
    """Write until nothing fits any more and return the file that takes the space."""
    path = directory / "somebody-elses-file"
    with path.open("wb", buffering=0) as file:
        block = bytes(1 << 16)
        while True:
            try:
                file.write(block)
            except OSError:
                return path
