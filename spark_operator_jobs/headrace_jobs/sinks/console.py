"""Results on the terminal, as a small readable table."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, TextIO

import structlog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from headrace_jobs.progress.stored import Batch

__all__ = ["ConsoleSink", "format_table"]

_log = structlog.get_logger(__name__)


@dataclass(kw_only=True)
class ConsoleSink:
    """Prints up to `rows_max` rows of each batch that has any."""

    rows_max: int = 40
    output: TextIO = field(default_factory=lambda: sys.stdout)
    _is_broken: bool = False

    @property
    def keeps_progress(self) -> bool:
        """Return False: a terminal stores nothing."""
        return False

    def unfit(self, frame: DataFrame) -> Column | None:  # noqa: ARG002 - every sink's shape
        """Return None: a terminal shows whatever there is."""
        return None

    def write(self, frame: DataFrame, batch: Batch) -> None:
        """Print the batch; rows beyond the maximum are only counted.

        What goes wrong is reported: it must not fail a batch that the other sinks have.
        """
        if self._is_broken:
            return
        try:
            rows = frame.take(self.rows_max + 1)
        except Exception as error:  # noqa: BLE001 - a year beyond 9999 is a ValueError, and so on
            reason = str(error).partition("\n")[0]
            _log.warning("a batch is not shown", batch=batch.batch_id, error=reason)
            return
        if not rows:
            return
        # Partitions come in any order; sort by time, then by host, for readers.
        shown = sorted(
            (tuple(row) for row in rows[: self.rows_max]), key=lambda row: [*map(str, row)]
        )
        table = format_table(frame.columns, shown)
        more = "\n(more rows not shown)" if len(rows) > self.rows_max else ""
        try:
            self.output.write(f"batch {batch.batch_id}\n{table}{more}\n")
            self.output.flush()
        except (OSError, ValueError) as error:
            self._is_broken = True
            _log.warning("results are not shown any more", error=str(error))

    def close(self) -> None:
        """Nothing is open."""


def format_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Lay rows out under their column names: numbers to the right, times without a date's noise."""
    cells = [[_text(value) for value in row] for row in rows]
    is_number = [
        all(isinstance(row[i], int | float) for row in rows) if rows else False
        for i in range(len(columns))
    ]
    widths = [
        max(len(name), *(len(row[i]) for row in cells)) if cells else len(name)
        for i, name in enumerate(columns)
    ]
    lines = []
    for row in [list(columns), *cells]:
        parts = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, is_number, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    return str(value)
