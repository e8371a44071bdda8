"""What a table of files needs from its log of commits. Types only."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from headrace_jobs.progress.stored import StoredProgress

__all__ = [
    "COMPACTED_BYTES_MAX",
    "REPLACED_FILES_KEPT_SECONDS",
    "ConflictError",
    "DataFile",
    "FileLog",
    "Held",
    "file_prefix",
]

#: Compaction makes files of about this size, and ignores larger ones.
COMPACTED_BYTES_MAX = 128 * 1024 * 1024
#: A reader that began before a compaction has this much time to finish.
REPLACED_FILES_KEPT_SECONDS = 3600.0


class ConflictError(Exception):
    """Another client committed since the log was read: read it again, and decide again."""


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """A Parquet file that a task wrote; `path` is relative to the table."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Held:
    """The state of one (job, generation) in a table's log."""

    progress: StoredProgress
    #: Its files, hidden from readers; None for the live generation.
    shadow: tuple[DataFile, ...] | None = None
    #: Discarded: only its epoch is left, which fences its last driver.
    is_discarded: bool = False
    #: Files that compaction or a swap replaced, with the time (seconds since 1970): deleted later.
    replaced: tuple[tuple[str, float], ...] = ()


def file_prefix(job: str, generation: int) -> str:
    """Return the common prefix of all data files of this generation's drivers."""
    identity = f"{job}/{generation}"
    return f"{hashlib.sha256(identity.encode()).hexdigest()[:8]}-g{generation}-"


class FileLog(Protocol):
    """The log of one table, as one (job, generation) sees it."""

    #: Whether the generation's files are hidden, beside the live ones. Read by `load`, written by
    #: `commit`: a new generation sets it before.
    is_shadow: bool

    @property
    def exists(self) -> bool:
        """Whether the table can take commits."""

    @property
    def folder(self) -> str:
        """The generation's present folder of data files, relative to the table."""

    def create(self, frame: DataFrame) -> None:
        """Create the table for rows of this frame, unless another client has just done so."""

    def check_schema(self, frame: DataFrame) -> None:
        """Raise `SinkError` if the table cannot take rows of this frame."""

    def load(self) -> Held | None:
        """Read the log; return the state of this job and generation."""

    def commit(self, progress: StoredProgress, files: Sequence[DataFile]) -> None:
        """Make files and progress visible atomically, based on the last read state.

        Raises `ConflictError` if this job's progress has changed since.
        """

    def files(self) -> set[str]:
        """Return the generation's committed files, relative to the table."""

    def clear(self, last: StoredProgress) -> None:
        """Delete files that will never be committed.

        They belong to this generation's former drivers, whose epoch is over, to retried tasks, and
        to discarded generations. `last` is the progress before this driver's. Files that readers
        may still be reading are left.
        """

    def compact(self, files_min: int, prefix: str) -> int:
        """Replace small files by larger ones if there are enough; return how many were replaced."""

    def generations(self) -> dict[int, Held]:
        """Return the last read state of every generation of this job."""

    def jobs(self) -> set[str]:
        """Return the jobs that write into the table."""

    def swap(self, live: int | None) -> None:
        """Make this generation the live one in place of `live`, in one commit.

        Raises `ConflictError` if a driver of either committed since the log was read.
        """

    def discard(self) -> None:
        """Discard this generation, rows and progress. Raises `ConflictError`.

        Its epoch stays, which fences its drivers, even if its number is used again.
        """
