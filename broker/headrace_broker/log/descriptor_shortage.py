"""What it means that no file descriptor is left: a condition of this process, not of a disk.

Owns the error of an operation that needed one, the count of them, and the spare descriptors of a
step that needs several (`files.as_a_whole`). It says so in the log once for each shortage.
"""

import contextlib
import errno
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import structlog

from headrace_broker.protocol.errors import ApiError, ErrorCode

SPARES: Final = 8
"""A step needs two or three at a time; other threads may take what it gives back in between."""
_WAITS_MAX: Final = 100
_WAIT_SECONDS: Final = 0.005
QUIET_SECONDS: Final = 10.0
"""A shortage is over when nothing has failed for that long."""
_ADVICE: Final = "raise the limit of open files: ulimit -n, LimitNOFILE= of a systemd unit"
_Made = TypeVar("_Made")
_log = structlog.get_logger(__name__)


class Shortages:
    """How often descriptors have run out in this process."""

    def __init__(self) -> None:
        self.count = 0
        """Operations that failed for lack of a file descriptor."""
        self._is_announced = False
        self._seen = 0
        self._seen_at = 0.0

    def note(self, path: Path | str) -> None:
        """Count an operation that failed, and log the first one of a shortage."""
        self.count += 1
        if not self._is_announced:
            self._is_announced = True
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            _log.error("file descriptors run out", path=str(path), limit=limit, advice=_ADVICE)

    def look(self, now: float) -> None:
        """Log the end of a shortage; call it every few seconds, with a monotonic time."""
        if self.count != self._seen:
            self._seen, self._seen_at = self.count, now
        elif self._is_announced and now - self._seen_at > QUIET_SECONDS:
            self._is_announced = False
            _log.info("file descriptors are enough again", failures=self.count)


SHORTAGES: Final = Shortages()


class OutOfDescriptorsError(ApiError):
    """No file descriptor was left: nothing was done, and the same may succeed later.

    Clients get KAFKA_STORAGE_ERROR, after which they try again.
    """

    def __init__(self, path: Path | str, cause: OSError) -> None:
        super().__init__(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"no file descriptor is left for {path} ({cause.strerror}): {_ADVICE}",
        )
        SHORTAGES.note(path)

    def __str__(self) -> str:
        return self.message


def is_shortage(error: OSError) -> bool:
    """Whether the process (EMFILE) or the machine (ENFILE) has no file descriptor left."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


class _Held(threading.local):
    """The spare descriptors of the step that a thread is in; None outside of one."""

    spares: list[int] | None = None


_held = _Held()


def holds_spares() -> bool:
    """Whether this thread is in a step with spare descriptors."""
    return _held.spares is not None


@contextlib.contextmanager
def spare_descriptors() -> Iterator[None]:
    """Hold spare descriptors for what is opened inside. Raises OSError if there are too few."""
    spares: list[int] = []
    try:
        for _ in range(SPARES):
            spares.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))  # noqa: PERF401 - closed if one fails
        _held.spares = spares
        yield
    finally:
        _held.spares = None
        for spare in spares:
            os.close(spare)


def opening(call: Callable[[], _Made]) -> _Made:
    """Open something, in the place of a spare descriptor if there is no other. Raises OSError.

    If other threads took all the spares of a step, it waits for them: each holds one for a moment.
    """
    waits = 0
    while True:
        try:
            return call()
        except OSError as error:
            if not is_shortage(error) or _held.spares is None or waits == _WAITS_MAX:
                raise
        if _held.spares:
            os.close(_held.spares.pop())
        else:
            waits += 1
            time.sleep(_WAIT_SECONDS)
