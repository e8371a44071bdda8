"""One frame with everything that leaves a query: results, records set aside, and progress beside.

A streaming query has one output. A transform that sets records aside returns a tagged frame: the
columns of its results, and those of `SIDE`, whose names begin with `_`. Whoever writes a batch
takes it apart with `results`, `rejected` and `progress`, computes it once, and reads nothing again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["SIDE", "is_tagged", "progress", "rejected", "results"]

#: `_kind` is `result`, `rejected` or `progress`, and says which of the others are set. `_headers`
#: is JSON; `_watermark_us` is what a late record missed, or how far a source's partition has come.
SIDE = (
    "_kind STRING, _topic STRING, _partition INT, _offset LONG, _key BINARY, _value BINARY,"
    " _headers STRING, _reason STRING, _watermark_us LONG, _group INT, _counted LONG, _late LONG,"
    " _malformed LONG, _duplicate LONG, _windows LONG"
)
_HEADERS = "array<struct<key string, value binary>>"


def is_tagged(frame: DataFrame) -> bool:
    """Whether a frame has more than results."""
    return "_kind" in frame.columns


def results(batch: DataFrame) -> DataFrame:
    """Return a batch's results alone."""
    plain = [name for name in batch.columns if not name.startswith("_")]
    return batch.where(F.col("_kind") == "result").select(*plain)


def rejected(batch: DataFrame) -> DataFrame:
    """Return late and malformed records as they came.

    `topic, partition, offset, key, value, headers, reason, watermark`; the last is null but for
    late ones.
    """
    return batch.where(F.col("_kind") == "rejected").select(
        *(F.col(f"_{name}").alias(name) for name in ("topic", "partition", "offset")),
        *(F.col(f"_{name}").alias(name) for name in ("key", "value")),
        F.from_json("_headers", _HEADERS).alias("headers"),
        F.col("_reason").alias("reason"),
        F.timestamp_micros("_watermark_us").alias("watermark"),
    )


def progress(batch: DataFrame) -> DataFrame:
    """Return what each group of keys came to in this batch, for each source partition.

    `group, topic, partition, counted, late, malformed, duplicate, windows, watermark_us`.
    """
    counts = ("counted", "late", "malformed", "duplicate")
    names = ("group", "topic", "partition", *counts, "windows")
    return batch.where(F.col("_kind") == "progress").select(
        *(F.col(f"_{name}").alias(name) for name in (*names, "watermark_us"))
    )
