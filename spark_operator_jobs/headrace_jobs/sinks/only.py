"""Writes a part of a job's results to a sink: some of the rows, some of the columns.

A query has one output. Several sinks may each take a part of it, with separate progress: when a
batch runs again, each sink skips what it already has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from headrace_jobs.delivery import Delivery
    from headrace_jobs.progress.stored import Batch, StoredProgress
    from headrace_jobs.sinks.protocol import Run, Sink, SinkWriter

__all__ = ["Only"]


@dataclass(frozen=True, kw_only=True)
class Only:
    """The rows that match `rows` (a Spark SQL expression), with these columns."""

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
    """The sink's writer with a part of each batch; everything else is delegated."""

    def __init__(self, only: Only, writer: SinkWriter) -> None:
        self._only = only
        self._writer = writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    # Named, for `isinstance` of a protocol: Python 3.12 and later do not see dynamic attributes.
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
        """Store where the next batch must start."""
        self.__getattr__("rewind")(progress)

    def describe(self) -> str:
        """Return what it is, for messages."""
        return str(self.__getattr__("describe")())

    @property
    def keeps_progress(self) -> bool:
        """Whether the writer does."""
        return self._writer.keeps_progress

    def unfit(self, frame: DataFrame) -> Column | None:
        """Return what the sink says of the part."""
        from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

        reason = self._writer.unfit(self._part(frame))
        return None if reason is None else F.when(F.expr(self._only.rows), reason)

    def write(self, frame: DataFrame, batch: Batch) -> None:
        """Write the part."""
        self._writer.write(self._part(frame), batch)

    def close(self) -> None:
        """Close the writer."""
        self._writer.close()

    def _part(self, frame: DataFrame) -> DataFrame:
        return frame.where(self._only.rows).select(*self._only.columns)
