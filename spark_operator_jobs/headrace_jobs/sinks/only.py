"""A part of a job's results into a sink of its own: some of the rows, some of the columns.

A query has one output, and several sinks may each take another part of it, each with its own
progress: what one of them has of a batch is skipped there when the batch runs again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace_jobs.delivery import Delivery
    from headrace_jobs.progress.stored import Batch, StoredProgress
    from headrace_jobs.sinks.protocol import Run, Sink, SinkWriter

__all__ = ["Only"]


@dataclass(frozen=True, kw_only=True)
class Only:
    """The rows for which `rows` (an expression of Spark's SQL) holds, and these columns of them."""

    rows: str
    columns: tuple[str, ...]
    sink: Sink

    def describe(self) -> str:
        """Return what the sink says it is."""
        return self.sink.describe()

    def refusal(self, delivery: Delivery, output_mode: str) -> str | None:
        """Return what the sink says."""
        return self.sink.refusal(delivery, output_mode)

    def open(self, run: Run) -> SinkWriter:
        """Open the sink."""
        writer: SinkWriter = _OnlyWriter(self, self.sink.open(run))
        return writer


class _OnlyWriter:
    """The sink's writer, which gets a part of each batch; all else is the writer's own."""

    def __init__(self, only: Only, writer: SinkWriter) -> None:
        self._only = only
        self._writer = writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    # By name, for `isinstance` of a protocol: from Python 3.12 on it sees no others.
    @property
    def stored(self) -> StoredProgress:
        """What the sink has."""
        stored: StoredProgress = self.__getattr__("stored")
        return stored

    @property
    def can_rewind(self) -> bool:
        """Whether rows that are written again replace themselves."""
        return bool(self.__getattr__("can_rewind"))

    def rewind(self, progress: StoredProgress) -> None:
        """Store where the next batch has to begin."""
        self.__getattr__("rewind")(progress)

    def describe(self) -> str:
        """Return what it is, for messages."""
        return str(self.__getattr__("describe")())

    @property
    def keeps_progress(self) -> bool:
        """Whether the writer does."""
        return self._writer.keeps_progress

    def write(self, frame: DataFrame, batch: Batch) -> None:
        """Write the part."""
        part = frame.where(self._only.rows).select(*self._only.columns)
        self._writer.write(part, batch)

    def close(self) -> None:
        """Close the writer."""
        self._writer.close()
