"""Writes results to Parquet files, exactly once: one commit publishes files and progress.

Executors write files under unique names, which no reader uses yet. Then the driver commits them
with the batch's offsets, in one atomic step of the table's log. That is either Delta's, whose
application transactions are its compare-and-set (`files_delta`), or Headrace's own plain log, which
needs no library (`files_plain`). Readers of the log never see half a batch, and a driver that was
replaced finds that its next number is taken.

Spark's own file sink is not used: its `_spark_metadata` silently skips the batches of a new
checkpoint, which starts at 0. Paths must be on a mounted file system with exclusive creation of
names, which a commit needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import structlog

from headrace_jobs.delivery import Delivery
from headrace_jobs.durable import sync
from headrace_jobs.progress.stored import FencedError, StoredProgress, Verdict, judge
from headrace_jobs.sinks.files_generations import FileGenerations, open_log, refuse_mixing
from headrace_jobs.sinks.files_log import ConflictError, file_prefix
from headrace_jobs.sinks.files_task import write_files
from headrace_jobs.sinks.protocol import SinkError
from headrace_jobs.sinks.unfit import first_reason, no_utf8

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from headrace_jobs.progress.stored import Batch
    from headrace_jobs.sinks.files_log import DataFile
    from headrace_jobs.sinks.protocol import Run

__all__ = ["FileTable", "FileWriter"]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class FileTable:
    """A folder of Parquet files with a log of commits. Rows are appended.

    `form`: `delta`, which Spark, Polars, DuckDB and others read as a Delta table (needs the library
    deltalake on the driver), or `parquet`, which `files_plain.committed_files` reads. When there
    are `compact_after` small files, they are merged into larger ones; 0 leaves them.
    """

    path: str
    form: Literal["delta", "parquet"] = "delta"
    compact_after: int = 100

    def describe(self) -> str:
        """Return `delta table PATH` or `parquet table PATH`."""
        return f"{self.form} table {self.path}"

    def refusal(self, delivery: Delivery, output_mode: str) -> str | None:  # noqa: ARG002 - every delivery holds
        """Return why the combination cannot hold."""
        if output_mode == "update":
            return "files are appended, and update mode writes a row again when it changed"
        if "://" in self.path:
            return "a commit needs a file system that makes a name exclusively; mount one"
        return None

    def output_generations(self, job: str) -> FileGenerations:
        """Return the job's generations in this table."""
        return FileGenerations(path=self.path, form=self.form, job=job)

    def open(self, run: Run) -> FileWriter:
        """Take the next epoch. Raises `SinkError`."""
        return FileWriter(self, run)


class FileWriter:
    """A table that is open for one driver.

    A Delta table has a schema from its first commit, so a new table is created, and its epoch
    taken, with the first batch.
    """

    keeps_progress = True
    can_rewind = False

    def __init__(self, sink: FileTable, run: Run) -> None:
        self._sink = sink
        self._run = run
        self._root = Path(sink.path)
        self._prefix = file_prefix(run.job, run.generation)
        self._epoch = 0
        self._stored = StoredProgress(epoch=0)
        try:
            self._log = open_log(sink.form, self._root, run.job, run.generation)
            self._root.mkdir(parents=True, exist_ok=True)
            if self._log.exists:
                self._claim()
        except OSError as error:
            raise SinkError(f"{sink.describe()} cannot be used: {error}") from error

    @property
    def stored(self) -> StoredProgress:
        """The progress in the log when it was last read."""
        return self._stored

    def describe(self) -> str:
        """Return what it is, for messages."""
        return self._sink.describe()

    def rewind(self, progress: StoredProgress) -> None:
        """Store where the next batch must start."""
        self._commit_progress(progress)

    def unfit(self, frame: DataFrame) -> Column | None:
        """Return why a row cannot be written: readers refuse a file of text that is not UTF-8."""
        return first_reason(no_utf8(frame))

    def write(self, frame: DataFrame, batch: Batch) -> None:
        """Write a batch. Raises `FencedError`, `GapError`, `SinkError`."""
        if not self._log.exists:
            self._log.create(frame)
        if self._epoch == 0:
            self._claim()
        self._log.check_schema(frame)
        if self._judge(batch) is Verdict.SKIP:
            return
        if self._run.delivery is Delivery.AT_MOST_ONCE:
            self._commit(batch, ())
            marked = self._stored
            files = self._write_files(frame, batch)
            self._stored = self._commit_again(marked, files)
        else:
            # At least once is not cheaper than exactly once here: the commit is needed anyway.
            self._commit(batch, self._write_files(frame, batch))
        self._compact()

    def close(self) -> None:
        """Nothing is open between batches."""

    def _claim(self) -> None:
        """Take the next epoch, then delete files that the last driver left uncommitted."""
        while True:
            try:
                held = self._log.load()
                self._stored = StoredProgress(epoch=0) if held is None else held.progress
                if held is None or held.is_discarded:
                    refuse_mixing(self._log, self._sink.describe(), self._run)
                    self._log.is_shadow = self._run.is_shadow
                claimed = _with_epoch(self._stored, self._stored.epoch + 1)
                self._log.commit(claimed, ())
            except ConflictError:
                continue
            break
        last = self._stored
        self._stored, self._epoch = claimed, claimed.epoch
        self._log.clear(last)

    def _judge(self, batch: Batch) -> Verdict:
        held = self._log.load()
        self._stored = StoredProgress(epoch=0) if held is None else held.progress
        if held is not None and held.is_discarded:
            raise FencedError(f"generation {self._run.generation} was thrown away")
        return judge(self._stored, self._epoch, batch)

    def _write_files(self, frame: DataFrame, batch: Batch) -> list[DataFile]:
        prefix = f"{self._prefix}b{batch.batch_id}-e{self._epoch}"
        folder = self._log.folder
        files = write_files(frame, self._root, folder, prefix)
        if files:
            sync(self._root / folder)
        return files

    def _commit(self, batch: Batch, files: Sequence[DataFile]) -> None:
        """Commit the batch; if the number is taken, find out by whom, and decide again."""
        while True:
            after = self._stored.after(batch)
            try:
                self._log.commit(after, files)
            except ConflictError:
                if self._judge(batch) is Verdict.SKIP:
                    return
            else:
                self._stored = after
                return

    def _commit_again(self, progress: StoredProgress, files: Sequence[DataFile]) -> StoredProgress:
        """Commit files of a batch whose progress is stored. Raises `SinkError` when fenced."""
        while True:
            try:
                self._log.commit(progress, files)
            except ConflictError as error:
                held = self._log.load()
                if held is None or held.progress.epoch != self._epoch:
                    raise SinkError("another driver opened the table: the batch is lost") from error
            else:
                return progress

    def _commit_progress(self, progress: StoredProgress) -> None:
        self._stored = self._commit_again(_with_epoch(progress, self._epoch), ())

    def _compact(self) -> None:
        """Merge small files into larger ones. If that fails now, it is done later."""
        if self._sink.compact_after <= 0:
            return
        try:
            compacted = self._log.compact(self._sink.compact_after, f"{self._prefix}c")
        except (ConflictError, OSError) as error:
            _log.warning("small files stay as they are", table=self._sink.path, error=str(error))
        else:
            if compacted:
                _log.info("small files compacted", table=self._sink.path, files=compacted)


def _with_epoch(progress: StoredProgress, epoch: int) -> StoredProgress:
    return replace(progress, epoch=epoch)
