"""`Flush`: makes a log durable up to an offset, in three steps so that fsync can run elsewhere.

`PartitionLog.begin_flush` and `finish_flush` belong to the log's thread. `Flush.run` touches only
files by path and may run in another thread, so a slow disk does not block the event loop.
"""

from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from headrace_broker.log.files import LogDirectoryFailure, sync_directory, sync_file
from headrace_broker.log.segments.segment import LogSegment


@dataclass(slots=True)
class FlushTurns:
    """Lets a log's flushes run one after the other, and none once one of them has failed.

    The kernel reports to one fsync that it has lost data. Another one that runs beside it, or after
    it, succeeds, and proves nothing.
    """

    lock: Lock = field(default_factory=Lock)
    failure: LogDirectoryFailure | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Flush:
    """What must be durable before `offset` can become the recovery point."""

    directory: Path
    offset: int
    epochs: Path
    truncations: int
    """The log's number of truncations when this flush began."""
    segments: tuple[LogSegment, ...]
    snapshots: tuple[Path, ...]
    """Producers' snapshots at rolled segments: retention may delete the batches behind them."""
    turns: FlushTurns

    def run(self) -> None:
        """Call fsync; raises LogDirectoryFailure, after which nothing may be retried.

        After an OutOfDescriptorsError it may: a file that was not opened was not synced either.
        """
        turns = self.turns
        with turns.lock:
            if turns.failure is not None:
                raise LogDirectoryFailure(turns.failure.path, turns.failure.cause)
            try:
                self._sync()
            except LogDirectoryFailure as failure:
                if not failure.is_about_a_missing_file:
                    turns.failure = failure
                raise

    def _sync(self) -> None:
        for segment in self.segments:
            segment.sync()
        for path in (self.epochs, *self.snapshots):
            sync_file(path)
        sync_directory(self.directory)
