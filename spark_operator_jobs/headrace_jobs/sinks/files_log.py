"""What a table of files needs of its log of commits. Types only."""

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

#: Compaction makes files of about this size, and leaves larger ones alone.
COMPACTED_BYTES_MAX = 128 * 1024 * 1024
#: Whoever began to read before a compaction has this long to end.
REPLACED_FILES_KEPT_SECONDS = 3600.0


class ConflictError(Exception):
    """Somebody else committed since the log was read: read it again, and judge again."""


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """A Parquet file that a task wrote; `path` is relative to the table."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a table's log says of one (job, generation)."""

    progress: StoredProgress
    #: Its files, which readers do not see; None of the generation that they see.
    shadow: tuple[DataFile, ...] | None = None
    #: Thrown away: what is left is its epoch, which fences its last driver.
    is_discarded: bool = False
    #: Files that compaction or a swap replaced, with the time (seconds since 1970): deleted later.
    replaced: tuple[tuple[str, float], ...] = ()


def file_prefix(job: str, generation: int) -> str:
    """Return what the names of all data files that this generation's drivers make begin with."""
    identity = f"{job}/{generation}"
    return f"{hashlib.sha256(identity.encode()).hexdigest()[:8]}-g{generation}-"


class FileLog(Protocol):
    """The log of one table, as one (job, generation) sees it."""

    #: Whether the generation's files are beside those that readers see. Read by `load`, written by
    #: `commit`: a generation that is new says what it will be.
    is_shadow: bool

    @property
    def exists(self) -> bool:
        """Whether the table can take commits."""

    @property
    def folder(self) -> str:
        """Where the generation's data files go now, relative to the table."""

    def create(self, frame: DataFrame) -> None:
        """Make the table for rows of this frame; one that somebody else made meanwhile is kept."""

    def check_schema(self, frame: DataFrame) -> None:
        """Raise `SinkError` when the table cannot take rows of this frame."""

    def load(self) -> Held | None:
        """Read the log; returns what it says of this job and generation."""

    def commit(self, progress: StoredProgress, files: Sequence[DataFile]) -> None:
        """Make files and progress visible in one step, on top of what was read last.

        Raises `ConflictError` when this job's progress changed since.
        """

    def files(self) -> set[str]:
        """Return the generation's committed files, relative to the table."""

    def clear(self, last: StoredProgress) -> None:
        """Delete files that nobody will commit.

        They are those of this generation's former drivers, whose epoch has been taken, of tasks
        that were tried again, and of generations that were thrown away. `last` is the progress
        before this driver's. Files that readers may still read are left.
        """

    def compact(self, files_min: int, prefix: str) -> int:
        """Replace small files by larger ones when there are so many; returns how many were."""

    def generations(self) -> dict[int, Held]:
        """Return what was read last of every generation of this job."""

    def other_jobs(self) -> set[str]:
        """Return the other jobs that write into the table."""

    def swap(self, live: int | None) -> None:
        """Make this generation the one that readers see, in place of `live`, in one commit.

        Raises `ConflictError` when a driver of either committed since the log was read.
        """

    def discard(self) -> None:
        """Throw this generation away, rows and progress. Raises `ConflictError`.

        An epoch is left, which fences its drivers, also when its number is used again.
        """
