"""`Flush`: makes a log durable up to an offset, in three steps so that fsync can run elsewhere.

`PartitionLog.begin_flush` and `finish_flush` belong to the log's thread. `Flush.run` touches only
files by path and may run in another thread, so a slow disk does not block the event loop.
"""

from dataclasses import dataclass
from pathlib import Path

from headrace_broker.log.files import sync_directory, sync_file
from headrace_broker.log.segments.segment import LogSegment


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

    def run(self) -> None:
        """Call fsync; raises LogDirectoryFailure, after which nothing may be retried."""
        for segment in self.segments:
            segment.sync()
        for path in (self.epochs, *self.snapshots):
            sync_file(path)
        sync_directory(self.directory)
