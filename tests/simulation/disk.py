# ruff: noqa: PTH110, PTH112, PTH113, PTH116, PTH118, PTH119, PTH120, PTH208 - stands in for `os`, with the paths that `os` gets
"""Simulated disks: real files on tmpfs under a layer that knows what was made durable.

The log layer calls `os` directly, so the seam is `os` itself: while `FileSystem.installed()` holds,
calls on paths and descriptors below a disk's root go through here. The real files are what the
kernel's page cache shows; beside each stands how to take back what no fsync has covered:

- a file's writes and truncations since its last fsync: a power cut keeps, loses or tears each;
- a directory's creations, renames and removals since its last fsync: a prefix of them survives.

Descriptors are numbers of our own, never used twice, so that a dead process's finalisers cannot
close or write a file of its successor.
"""

import contextlib
import errno
import fcntl
import io
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulation.loop import CURRENT, Process, ProcessEnded

_UNCHECKED_BYTES = 21
_TORN_BYTES_MAX = 300
_FIRST_DESCRIPTOR = 1_000_000
_REAL = {
    name: getattr(os, name)
    for name in (
        "open", "close", "read", "write", "pread", "pwrite", "pwritev", "fsync", "fdatasync",
        "ftruncate", "truncate", "replace", "rename", "unlink", "remove", "mkdir", "rmdir", "fstat",
    )
}  # fmt: skip
_REAL_STAT = os.stat
_open_file = io.open


@dataclass(slots=True)
class Change:
    """One change of a file's bytes that no fsync has covered."""

    position: int
    old: bytes
    old_size: int
    new: bytes
    new_size: int


@dataclass(slots=True)
class File:
    """A file with changes that may yet be lost; `fd` keeps it reachable whatever its name is."""

    fd: int
    changes: list[Change] = field(default_factory=list)
    is_poisoned: bool = False
    """An fsync failed: its changes look clean to the kernel and will never be written."""


@dataclass(slots=True)
class Entry:
    """One change of a directory that no fsync has covered."""

    kind: str
    name: str
    target: str = ""
    saved: Path | None = None


@dataclass(slots=True)
class Descriptor:
    """An open descriptor of a simulated process; a directory's has no real one behind it."""

    real: int
    path: str
    inode: int
    is_appending: bool = False

    @property
    def is_directory(self) -> bool:
        return self.real < 0


class Disk:
    """One host's disk below `root`."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root = root
        self.rng = rng
        self.graveyard = root.with_name(root.name + ".graveyard")
        self.files: dict[int, File] = {}
        self.entries: dict[int, list[Entry]] = {}
        self.folders: dict[int, str] = {}
        self.descriptors: dict[int, Descriptor] = {}
        self.process: Process | None = None
        self.is_stopped = False
        """The process that owns the disk is dead: nothing of it reaches the disk any more."""
        self.operations = 0
        self.stop_at: int | None = None
        """The operation in whose middle the process dies."""
        self.torn_partition = ""
        """The process dies right after the next append to it; a power cut tears that append."""
        self._torn = 0
        self.on_stopped: Callable[[], None] = lambda: None
        self.may_stop: Callable[[], bool] = lambda: True
        """Asked before an operation ends the process."""
        self.fsync_errors = 0
        self.write_errors = 0
        self.read_errors = 0
        self.is_full = False
        self.failed_folder = ""
        """What is below fails: one disk of several."""
        self.short_write_probability = 0.0
        self.slow_fsync_probability = 0.0
        self.late_answer_probability = 0.0
        """How often the process hears late that a thread's work is done."""
        self.flip_probability = 0.0
        self._graves = 0
        root.mkdir(parents=True, exist_ok=True)
        self.graveyard.mkdir(exist_ok=True)

    # ---- life

    def attach(self, process: Process) -> None:
        """Give the disk to a process."""
        self.process = process
        self.is_stopped = False
        self.stop_at = None
        self.torn_partition = ""

    def detach(self) -> None:
        """The process is dead: its descriptors, and with them its locks, are gone."""
        self.is_stopped = True
        self.stop_at = None
        for descriptor in self.descriptors.values():
            if not descriptor.is_directory:
                _REAL["close"](descriptor.real)
        self.descriptors.clear()

    def close(self) -> None:
        """Give back what the simulation itself holds open; the disk is not used any more."""
        self.detach()
        for file in self.files.values():
            _REAL["close"](file.fd)
        self.files.clear()

    def step(self) -> bool:
        """Count an operation; True where the process dies in this one, by `die`, come what may."""
        current = CURRENT.get()
        if self.is_stopped or current is not self.process:
            raise ProcessEnded
        self.operations += 1
        if self.stop_at is not None and self.operations >= self.stop_at:
            self.stop_at = None
            return self.may_stop()
        return False

    def die(self) -> None:
        """End the process from inside one of its system calls."""
        self.is_stopped = True
        self.on_stopped()
        raise ProcessEnded

    def check_folder(self, path: str) -> None:
        """Raise EIO for what is below a folder that failed."""
        if self.failed_folder and path.startswith(self.failed_folder):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def check_read(self, path: str) -> None:
        """Raise EIO for what is below a folder that failed, and for a sector that went bad."""
        self.check_folder(path)
        if self.read_errors and self.rng.random() < 0.3:
            self.read_errors -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    # ---- what is not durable yet

    def note_change(self, fd: int, inode: int, change: Change) -> None:
        file = self.files.get(inode)
        if file is None:
            file = self.files[inode] = File(_reopen(fd))
        file.changes.append(change)

    def note_entry(self, folder: str, entry: Entry) -> None:
        inode = os.stat(folder).st_ino
        self.folders[inode] = folder
        self.entries.setdefault(inode, []).append(entry)

    def bury(self, path: str) -> Path:
        """Keep a file that loses its name, so that the name can come back."""
        self._graves += 1
        grave = self.graveyard / str(self._graves)
        os.link(path, grave)
        return grave

    def sync_file(self, inode: int) -> None:
        file = self.files.get(inode)
        if file is not None and not file.is_poisoned:
            del self.files[inode]
            _REAL["close"](file.fd)

    def sync_folder(self, inode: int) -> None:
        for entry in self.entries.pop(inode, ()):
            if entry.saved is not None:
                _REAL["unlink"](entry.saved)

    def renamed_folder(self, source: str, target: str) -> None:
        for inode, path in self.folders.items():
            if path == source or path.startswith(source + "/"):
                self.folders[inode] = target + path[len(source) :]

    def unsynced_from(self, path: Any) -> int | None:
        """Return the first position of a file that is written and not durable, None where none."""
        file = self.files.get(_REAL_STAT(path).st_ino)
        written = [change.position for change in file.changes if change.new] if file else []
        return min(written, default=None)

    def has_unsynced_name(self, path: Any) -> bool:
        """Whether a power cut may take a file's name."""
        folder, name = os.path.split(os.fspath(path))
        entries = self.entries.get(_REAL_STAT(folder).st_ino, ())
        return any(entry.kind == "create" and entry.name == name for entry in entries)

    def has_unsynced_bytes(self, path: Any) -> bool:
        """Whether a power cut may change a file's bytes."""
        return _REAL_STAT(path).st_ino in self.files

    def may_change(self, path: Any) -> bool:
        """Whether a power cut may change a file's bytes, or take its name away."""
        folder, name = os.path.split(os.fspath(path))
        entries = self.entries.get(_REAL_STAT(folder).st_ino, ())
        return self.has_unsynced_bytes(path) or any(
            (entry.kind, entry.name) == ("create", name)
            or (entry.kind, entry.target) == ("rename", name)
            for entry in entries
        )

    def may_bring_back(self, folder: Any, suffix: str) -> bool:
        """Whether a power cut may bring back a name that was removed from a folder."""
        entries = self.entries.get(_REAL_STAT(folder).st_ino, ())
        return any(
            entry.kind in ("unlink", "rename") and entry.name.endswith(suffix) for entry in entries
        )

    # ---- bytes that rot

    def rot(self, path: Any, position: int, size: int = 0) -> None:
        """Damage what an fsync has covered: flip a bit, or turn `size` bytes to zeros."""
        with _open_file(path, "r+b") as file:
            file.seek(position)
            damaged = bytes(size) if size else bytes([file.read(1)[0] ^ 1])
            file.seek(position)
            file.write(damaged)

    # ---- power cuts

    def lose_unsynced(self) -> None:
        """Cut the power: what no fsync has covered is kept, lost or torn, at random."""
        for inode, entries in list(self.entries.items()):
            folder = self.folders[inode]
            if not os.path.isdir(folder):
                continue
            kept = self._kept(len(entries))
            for entry in reversed(entries[kept:]):
                self._undo_entry(folder, entry)
            for entry in entries[:kept]:
                if entry.saved is not None:
                    _REAL["unlink"](entry.saved)
        self.entries.clear()
        for inode, file in self.files.items():
            self._settle(file, tears_last=inode == self._torn)
            _REAL["close"](file.fd)
        self.files.clear()
        self._torn = 0

    def evict(self) -> None:
        """Drop what failed fsyncs left in the page cache: the kernel thinks it clean.

        A broker ends when fsync fails, and its successor reads from the disk: XFS drops the pages
        at once, ext4 when memory is short. A process that went on would be caught at its end.
        """
        for inode, file in list(self.files.items()):
            if file.is_poisoned:
                self._settle(file)
                _REAL["close"](file.fd)
                del self.files[inode]

    def _kept(self, count: int) -> int:
        draw = self.rng.random()
        if draw < 0.35:
            return 0
        return count if draw < 0.7 else self.rng.randint(0, count)

    def _settle(self, file: File, *, tears_last: bool = False) -> None:
        changes = file.changes
        for change in reversed(changes):
            _REAL["ftruncate"](file.fd, change.old_size)
            if change.old:
                _REAL["pwrite"](file.fd, change.old, change.position)
        if tears_last:
            *others, last = changes
            for change in others:
                self._redo(file.fd, change, is_torn=False)
            # Not far from its beginning, where it overlaps what was there before a truncation.
            cut = self.rng.randint(0, min(len(last.new), _TORN_BYTES_MAX))
            _REAL["pwrite"](file.fd, last.new[:cut].ljust(len(last.new), b"\0"), last.position)
            return
        in_order = self.rng.random() < 0.7
        kept = self._kept(len(changes)) if in_order else len(changes)
        for number, change in enumerate(changes[:kept]):
            if not in_order and self.rng.random() < 0.5:
                continue
            is_last = number == kept - 1
            self._redo(file.fd, change, is_torn=is_last and self.rng.random() < 0.5)

    def _redo(self, fd: int, change: Change, *, is_torn: bool) -> None:
        if not change.new:
            _REAL["ftruncate"](fd, change.new_size)
            return
        data = change.new
        if is_torn:
            cut = self.rng.randint(0, len(data))
            # Half of the time the size is there already and the rest reads as zeros.
            is_extended = self.rng.random() < 0.5
            data = data[:cut] + (bytes(len(data) - cut) if is_extended else b"")
        if data and self.rng.random() < self.flip_probability:
            flipped = bytearray(data)
            # What brokers set themselves, offset and leader epoch, no checksum of a batch covers.
            first = min(_UNCHECKED_BYTES, len(data) - 1)
            flipped[self.rng.randrange(first, len(data))] ^= 1 << self.rng.randrange(8)
            data = bytes(flipped)
        if data:
            _REAL["pwrite"](fd, data, change.position)

    def _undo_entry(self, folder: str, entry: Entry) -> None:
        path = os.path.join(folder, entry.name)
        if entry.kind == "create":
            with contextlib.suppress(FileNotFoundError):
                _REAL["unlink"](path)
        elif entry.kind == "mkdir":
            # Where it is gone, it was renamed since, and removed under its later name.
            if os.path.isdir(path):
                _remove_tree(path)
        elif entry.kind == "unlink" and entry.saved is not None:
            _REAL["rename"](entry.saved, path)
        elif entry.kind == "rename":
            target = os.path.join(folder, entry.target)
            if os.path.exists(target):
                _REAL["rename"](target, path)
                self.renamed_folder(target, path)
            if entry.saved is not None:
                _REAL["rename"](entry.saved, target)


class FileSystem:
    """All disks of a simulation, and the calls of `os` that reach them."""

    def __init__(self) -> None:
        self.disks: list[Disk] = []
        self._roots: dict[str, Disk] = {}
        self._root_size: set[int] = set()
        self.on_fsync: Callable[[Disk, float], None] = lambda _disk, _delay: None
        self._owners: dict[int, Disk] = {}
        self._next = _FIRST_DESCRIPTOR

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Route `os` through the disks."""
        replaced = {name: getattr(self, "_" + name) for name in _REAL}
        self._roots = {str(disk.root): disk for disk in self.disks}
        self._root_size = {len(root) for root in self._roots}
        flock, fd_based = fcntl.flock, shutil._use_fd_functions
        try:
            for name, function in replaced.items():
                setattr(os, name, function)
            io.open = self._open_file  # type: ignore[assignment]  # what `Path.read_bytes` calls
            fcntl.flock = self._flock  # type: ignore[assignment]  # the same call on our descriptors
            shutil._use_fd_functions = False  # rmtree by paths, which we can see
            yield
        finally:
            for name, function in _REAL.items():
                setattr(os, name, function)
            io.open = _open_file
            fcntl.flock = flock
            shutil._use_fd_functions = fd_based

    def _disk(self, path: Any) -> tuple[Disk | None, str]:
        if not isinstance(path, str | bytes | os.PathLike):
            return None, ""
        text = os.fsdecode(path)
        for size in self._root_size:
            disk = self._roots.get(text[:size])
            if disk is not None and text[size : size + 1] in ("", "/"):
                return disk, text
        return None, text

    def _descriptor(self, fd: int) -> tuple[Disk, Descriptor]:
        disk = self._owners[fd]
        descriptor = disk.descriptors.get(fd)
        if disk.is_stopped or CURRENT.get() is not disk.process:
            raise ProcessEnded
        if descriptor is None:
            raise OSError(errno.EBADF, "descriptor of a dead process")
        return disk, descriptor

    # ---- descriptors

    def _open(self, path, flags, mode=0o777, *, dir_fd=None):
        disk, text = self._disk(path)
        if disk is None:
            return _REAL["open"](path, flags, mode, dir_fd=dir_fd)
        if disk.step():
            disk.die()
        disk.check_folder(text)
        if flags & os.O_DIRECTORY:
            return self._new_descriptor(disk, Descriptor(-1, text, os.stat(text).st_ino))
        exists = not flags & os.O_CREAT or os.path.lexists(text)
        old = _read_whole(text) if exists and flags & os.O_TRUNC else b""
        if not exists and disk.is_full and disk.rng.random() < 0.5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), text)
        real = _REAL["open"](path, flags, mode)
        inode = _REAL["fstat"](real).st_ino
        if not exists:
            disk.note_entry(os.path.dirname(text), Entry("create", os.path.basename(text)))
        if old:
            disk.note_change(real, inode, Change(0, old, len(old), b"", 0))
        is_appending = bool(flags & os.O_APPEND)
        return self._new_descriptor(disk, Descriptor(real, text, inode, is_appending))

    def _new_descriptor(self, disk: Disk, descriptor: Descriptor) -> int:
        self._next += 1
        self._owners[self._next] = disk
        disk.descriptors[self._next] = descriptor
        return self._next

    def _close(self, fd):
        if fd not in self._owners:
            return _REAL["close"](fd)
        disk = self._owners[fd]
        descriptor = disk.descriptors.pop(fd, None)
        if descriptor is not None and not descriptor.is_directory:
            _REAL["close"](descriptor.real)
        return None

    def _fstat(self, fd):
        return _REAL["fstat"](self._descriptor(fd)[1].real if fd in self._owners else fd)

    def _flock(self, fd, operation):
        if fd in self._owners:
            fd = self._descriptor(fd)[1].real
        return _flock(fd, operation)

    def _open_file(self, file, mode="r", *args, **options):
        """As `open`, by which brokers only read: what they write goes through descriptors."""
        disk, text = self._disk(file)
        if disk is not None and CURRENT.get() is disk.process and os.path.lexists(text):
            disk.check_read(text)
        return _open_file(file, mode, *args, **options)

    # ---- bytes

    def _read(self, fd, length, /):
        return _REAL["read"](self._descriptor(fd)[1].real if fd in self._owners else fd, length)

    def _pread(self, fd, length, offset, /):
        if fd in self._owners:
            disk, descriptor = self._descriptor(fd)
            disk.check_read(descriptor.path)
            fd = descriptor.real
        return _REAL["pread"](fd, length, offset)

    def _write(self, fd, data, /):
        if fd not in self._owners:
            return _REAL["write"](fd, data)
        disk, descriptor = self._descriptor(fd)
        if descriptor.is_appending:
            position = _REAL["fstat"](descriptor.real).st_size
        else:
            position = os.lseek(descriptor.real, 0, os.SEEK_CUR)
        count = self._write_at(disk, descriptor, bytes(data), position)
        os.lseek(descriptor.real, position + count, os.SEEK_SET)
        return count

    def _pwrite(self, fd, data, offset, /):
        if fd not in self._owners:
            return _REAL["pwrite"](fd, data, offset)
        disk, descriptor = self._descriptor(fd)
        return self._write_at(disk, descriptor, bytes(data), offset)

    def _pwritev(self, fd, buffers, offset, flags=0, /):
        if fd not in self._owners:
            return _REAL["pwritev"](fd, buffers, offset, flags)
        disk, descriptor = self._descriptor(fd)
        return self._write_at(disk, descriptor, b"".join(buffers), offset)

    def _write_at(self, disk: Disk, descriptor: Descriptor, data: bytes, position: int) -> int:
        dies = disk.step()
        if not dies:
            disk.check_folder(descriptor.path)
        rng = disk.rng
        if dies:
            # SIGKILL can stop a large write in its middle.
            data = data[: rng.randint(0, len(data))]
        elif disk.write_errors and rng.random() < 0.3:
            disk.write_errors -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO), descriptor.path)
        elif disk.is_full:
            data = data[: rng.randint(0, len(data))] if rng.random() < 0.3 else b""
            if not data:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), descriptor.path)
        elif len(data) > 1 and rng.random() < disk.short_write_probability:
            data = data[: rng.randint(1, len(data) - 1)]
        if data:
            size = _REAL["fstat"](descriptor.real).st_size
            end = position + len(data)
            old = b""
            if position < size:
                fd = _reopen(descriptor.real)
                old = _REAL["pread"](fd, min(end, size) - position, position)
                _REAL["close"](fd)
            change = Change(position, old, size, data, max(size, end))
            disk.note_change(descriptor.real, descriptor.inode, change)
            if descriptor.is_appending:
                _REAL["write"](descriptor.real, data)
            else:
                _REAL["pwrite"](descriptor.real, data, position)
        is_torn = bool(disk.torn_partition) and _is_of_log(descriptor.path, disk.torn_partition)
        if is_torn and (dies or disk.may_stop()):
            disk._torn, dies = descriptor.inode, True
        if dies:
            disk.die()
        return len(data)

    def _ftruncate(self, fd, length, /):
        if fd not in self._owners:
            return _REAL["ftruncate"](fd, length)
        disk, descriptor = self._descriptor(fd)
        return self._truncate_file(disk, _reopen(descriptor.real), length)

    def _truncate(self, path, length):
        if isinstance(path, int):
            return self._ftruncate(path, length)
        disk, text = self._disk(path)
        if disk is None:
            return _REAL["truncate"](path, length)
        return self._truncate_file(disk, _REAL["open"](text, os.O_RDWR), length)

    def _truncate_file(self, disk: Disk, fd: int, length: int) -> None:
        try:
            if disk.step():
                disk.die()
            status = _REAL["fstat"](fd)
            size = status.st_size
            if size != length:
                old = _REAL["pread"](fd, size - length, length) if length < size else b""
                disk.note_change(fd, status.st_ino, Change(length, old, size, b"", length))
                _REAL["ftruncate"](fd, length)
        finally:
            _REAL["close"](fd)

    def _fsync(self, fd, /):
        if fd not in self._owners:
            return _REAL["fsync"](fd)
        disk, descriptor = self._descriptor(fd)
        if disk.step():
            disk.die()
        disk.check_folder(descriptor.path)
        if disk.slow_fsync_probability and disk.rng.random() < disk.slow_fsync_probability:
            self.on_fsync(disk, disk.rng.choice((0.005, 0.05, 0.5)))
        if disk.fsync_errors and not descriptor.is_directory and disk.rng.random() < 0.3:
            disk.fsync_errors -= 1
            file = disk.files.get(descriptor.inode)
            if file is not None:
                file.is_poisoned = True
            raise OSError(errno.EIO, os.strerror(errno.EIO), descriptor.path)
        if descriptor.is_directory:
            disk.sync_folder(descriptor.inode)
        else:
            disk.sync_file(descriptor.inode)
        return None

    _fdatasync = _fsync

    # ---- names

    def _rename(self, src, dst, *, src_dir_fd=None, dst_dir_fd=None):
        disk, source = self._disk(src)
        _, target = self._disk(dst)
        if disk is None:
            return _REAL["rename"](src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        if disk.step():
            disk.die()
        folder = os.path.dirname(source)
        if folder != os.path.dirname(target):
            raise NotImplementedError("renames between directories are not simulated")
        os.stat(source)
        disk.check_folder(source)
        saved = None
        if os.path.isfile(target):
            saved = disk.bury(target)
        _REAL["replace"](source, target)
        name, new = os.path.basename(source), os.path.basename(target)
        disk.note_entry(folder, Entry("rename", name, new, saved))
        if os.path.isdir(target):
            disk.renamed_folder(source, target)
        return None

    _replace = _rename

    def _unlink(self, path, *, dir_fd=None):
        disk, text = self._disk(path)
        if disk is None:
            return _REAL["unlink"](path, dir_fd=dir_fd)
        if disk.step():
            disk.die()
        os.stat(text)
        disk.check_folder(text)
        folder, name = os.path.split(text)
        if folder == str(disk.root) or not folder.endswith("-delete"):
            disk.note_entry(folder, Entry("unlink", name, saved=disk.bury(text)))
        _REAL["unlink"](text)
        return None

    _remove = _unlink

    def _mkdir(self, path, mode=0o777, *, dir_fd=None):
        disk, text = self._disk(path)
        if disk is None or text == str(disk.root):
            return _REAL["mkdir"](path, mode, dir_fd=dir_fd)
        if disk.step():
            disk.die()
        disk.check_folder(text)
        _REAL["mkdir"](text, mode)
        disk.note_entry(os.path.dirname(text), Entry("mkdir", os.path.basename(text)))
        return None

    def _rmdir(self, path, *, dir_fd=None):
        disk, text = self._disk(path)
        if disk is None:
            return _REAL["rmdir"](path, dir_fd=dir_fd)
        if disk.step():
            disk.die()
        # Only what carries a deleted partition's name is ever removed: taken as durable. Entries of
        # the folder above it that are not synced may name it still; undone, they find nothing.
        disk.sync_folder(os.stat(text).st_ino)
        return _REAL["rmdir"](text)


_flock = fcntl.flock


def _read_whole(path: str) -> bytes:
    with _open_file(path, "rb") as file:
        return file.read()


def _is_of_log(path: str, partition: str) -> bool:
    folder, name = os.path.split(path)
    return name.endswith(".log") and os.path.basename(folder) == partition


def _reopen(fd: int) -> int:
    """Open the same file again for reading and writing, whatever it is called by now."""
    return int(_REAL["open"](f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC))


def _remove_tree(path: str) -> None:
    for name in os.listdir(path):
        inner = os.path.join(path, name)
        if os.path.isdir(inner):
            _remove_tree(inner)
        else:
            _REAL["unlink"](inner)
    _REAL["rmdir"](path)
