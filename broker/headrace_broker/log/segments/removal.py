"""`FileRemoval`: removes segments from the log at once, and from disk after `file.delete.delay.ms`.

Owns the `.deleted` names. After a kill, the next start removes such files.
"""

from collections import deque
from pathlib import Path

from headrace_broker.log.files import failing_the_directory, remove_quietly
from headrace_broker.log.segments.segment import LogSegment
from headrace_broker.log.segments.swap import DELETED_SUFFIX


class FileRemoval:
    """Files that wait to be removed."""

    __slots__ = ("_looked_ms", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, list[Path]]] = deque()
        self._looked_ms = 0

    def schedule(self, segment: LogSegment, due_ms: int) -> None:
        """Rename a segment's files and schedule their removal."""
        segment.close()
        self.schedule_files(segment.paths(), due_ms)

    def schedule_files(self, paths: list[Path], due_ms: int) -> None:
        """Do the same for files that belong to no segment."""
        renamed = []
        for path in paths:
            target = path.with_name(path.name + DELETED_SUFFIX)
            with failing_the_directory(path):
                try:
                    path.rename(target)
                except FileNotFoundError:
                    continue
            renamed.append(target)
        self._waiting.append((due_ms, renamed))

    def renamed(self, directory: Path) -> None:
        """Continue under the folder's new name."""
        self._waiting = deque(
            (due_ms, [directory / path.name for path in paths]) for due_ms, paths in self._waiting
        )

    def run_due(self, now_ms: int) -> int:
        """Remove the files that are due; return their number.

        If the clock was set back, the wait does not grow by that time.
        """
        if now_ms < self._looked_ms:
            lost = self._looked_ms - now_ms
            self._waiting = deque((due_ms - lost, paths) for due_ms, paths in self._waiting)
        self._looked_ms = now_ms
        removed = 0
        while self._waiting and self._waiting[0][0] <= now_ms:
            for path in self._waiting.popleft()[1]:
                remove_quietly(path)
                removed += 1
        return removed

    def run_all(self) -> None:
        """Remove all waiting files."""
        while self._waiting:
            for path in self._waiting.popleft()[1]:
                remove_quietly(path)
