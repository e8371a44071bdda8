"""Which windows of late records are closed: those that their watermark had passed.

A record that is late for some of its windows is counted in the others, which the job still owns. A
replay of late records says which watermark each of them missed, and a transform over them then
returns closed windows alone.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

__all__ = ["MISSED", "missed_watermarks", "with_missed"]

#: A record's column: the watermark that it missed.
MISSED = "_missed_watermark"
_VIEW = "headrace.missed.view"
_PLACE = ("topic", "partition", "offset")


@contextlib.contextmanager
def missed_watermarks(late: DataFrame) -> Iterator[None]:
    """Let transforms built in this context know `topic, partition, offset, watermark` of records.

    By their places, which every transform keeps for its dead letters.
    """
    session = late.sparkSession
    late.select(*_PLACE, F.col("watermark").alias(MISSED)).createOrReplaceTempView(
        "headrace_missed"
    )
    session.conf.set(_VIEW, "headrace_missed")
    try:
        yield
    finally:
        session.conf.unset(_VIEW)


def with_missed(rows: DataFrame) -> DataFrame | None:
    """Return rows with the watermarks that they missed (`MISSED`), or None if none are known."""
    view = rows.sparkSession.conf.get(_VIEW, None)
    if view is None or not set(_PLACE) <= set(rows.columns):
        return None
    return rows.join(F.broadcast(rows.sparkSession.table(view)), [*_PLACE], "left")
