"""Results on the terminal, as a small table a person can follow."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

__all__ = ["ConsoleSink", "format_table"]


@dataclass(frozen=True, kw_only=True)
class ConsoleSink:
    """Prints up to `rows_max` rows of each batch that has any."""

    rows_max: int = 40
    output: TextIO = field(default_factory=lambda: sys.stdout)

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Print the batch; rows beyond the maximum are only counted."""
        rows = batch.take(self.rows_max + 1)
        if not rows:
            return
        # Partitions come in any order; a person reads by time, then by host.
        shown = sorted(
            (tuple(row) for row in rows[: self.rows_max]), key=lambda row: [*map(str, row)]
        )
        table = format_table(batch.columns, shown)
        more = "\n(more rows not shown)" if len(rows) > self.rows_max else ""
        self.output.write(f"batch {batch_id}\n{table}{more}\n")
        self.output.flush()


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
