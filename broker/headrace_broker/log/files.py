"""File operations whose failure must fail the whole log directory.

Owns the handling of failed fsyncs and full disks. An EIO or ENOSPC is never retried: after a failed
fsync the kernel may have dropped the dirty pages, and then a second call that succeeds proves
nothing (Rebello et al., "Can Applications Recover from fsync Failures?", ATC 2020). A file that is
not opened for lack of a descriptor says nothing about the disk (`descriptor_shortage`).
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from headrace_broker.log.descriptor_shortage import (
    OutOfDescriptorsError,
    holds_spares,
    is_shortage,
    opening,
    spare_descriptors,
)


class LogDirectoryFailure(Exception):  # noqa: N818 - Kafka's term is a failed log directory
    """The disk failed: this whole log directory must be taken offline, with an error in the log.

    The outcome of the operation is unknown; clients get KAFKA_STORAGE_ERROR.
    """

    def __init__(self, path: Path | str, cause: str) -> None:
        super().__init__(f"log directory failed at {path}: {cause}")
        self.path = Path(path)
        self.cause = cause

    @property
    def is_about_a_missing_file(self) -> bool:
        """Whether work in another thread failed because its partition was just deleted."""
        return isinstance(self.__cause__, FileNotFoundError)


@contextlib.contextmanager
def failing_the_directory(path: Path) -> Iterator[None]:
    """Turn any `OSError` inside into `LogDirectoryFailure`, or into `OutOfDescriptorsError`."""
    try:
        yield
    except OSError as error:
        if is_shortage(error):
            raise OutOfDescriptorsError(path, error) from error
        raise LogDirectoryFailure(path, str(error)) from error


@contextlib.contextmanager
def as_a_whole(path: Path) -> Iterator[None]:
    """Do a step that opens several files whole, or not at all for lack of descriptors.

    Raises OutOfDescriptorsError before the step begins. Nothing inside may await: the spare
    descriptors belong to this thread.
    """
    if holds_spares():
        yield
        return
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(spare_descriptors())
        except OSError as error:
            raise OutOfDescriptorsError(path, error) from error
        try:
            yield
        except OutOfDescriptorsError as error:
            # Other threads keep all the spares: what is on disk is half done.
            raise LogDirectoryFailure(path, error.message) from error


def open_file(path: Path, flags: int) -> int:
    """Return a file descriptor; raises OSError."""
    return opening(lambda: os.open(path, flags | os.O_CLOEXEC, 0o644))


def read_file(path: Path) -> bytes:
    """Return a file's bytes; raises OSError."""
    return opening(path.read_bytes)


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, ascending; raises OSError."""
    return sorted(opening(lambda: [each.name for each in folder.iterdir()]))


def finish_write(fd: int, data: memoryview, position: int, path: Path) -> None:
    """Finish a short write; on failure, truncate the file to where the append began.

    `data` is the whole append and `position` its start, so that no partial batch can be left before
    a later, acknowledged one.
    """
    with failing_the_directory(path):
        size = os.fstat(fd).st_size
        done = max(0, min(size - position, len(data)))
        try:
            while done < len(data):
                done += os.pwrite(fd, data[done:], position + done)
        except OSError as error:
            undo_write(fd, position, path, error)


def undo_write(fd: int, position: int, path: Path, error: OSError) -> NoReturn:
    """Truncate a failed append and fail the directory."""
    with contextlib.suppress(OSError):
        os.ftruncate(fd, position)
    raise LogDirectoryFailure(path, str(error)) from error


def sync_directory(path: Path) -> None:
    """Make renames and new files in a directory durable."""
    with failing_the_directory(path):
        fd = open_file(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def sync_file(path: Path) -> None:
    """Make a file durable, through a new descriptor, if the file exists.

    Since Linux 4.13 a new descriptor also reports a write-back error that was not reported yet.
    """
    with failing_the_directory(path):
        try:
            fd = open_file(path, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def replace_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace a file so that after a crash either the old or the new one is there, whole.

    Raises OutOfDescriptorsError, with the old one in place.
    """
    temporary = path.with_name(path.name + ".tmp")
    with failing_the_directory(path), contextlib.ExitStack() as opened:
        folder = -1
        if durable:
            # First, so that no descriptor can be missing once the new file has its name.
            folder = open_file(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            opened.callback(os.close, folder)
        fd = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        temporary.replace(path)
        if durable:
            os.fsync(folder)


def rename_durably(source: Path, target: Path) -> None:
    """Rename, and make the new name durable.

    Raises OutOfDescriptorsError: then it has the new name, which may not be durable.
    """
    with failing_the_directory(target):
        source.replace(target)
    sync_directory(target.parent)


def remove_quietly(path: Path) -> None:
    """Unlink a file that may be gone already."""
    with failing_the_directory(path):
        path.unlink(missing_ok=True)
