"""One frame with everything that leaves a query: results, rejected records, and progress.

A streaming query has one output. A transform that rejects records returns a tagged frame: the
columns of its results, and those of `SIDE`, whose names begin with `_`. The writer of a batch
computes it once and splits it with `results`, `rejected` and `progress`, without reading again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

__all__ = ["SIDE", "is_tagged", "progress", "rejected", "results", "unfit"]

#: `_kind` is `result`, `rejected` or `progress`, and determines which of the others are set.
#: `_headers` is JSON; `_watermark_us` is the watermark that a late record missed, or a source
#: partition's own.
SIDE = (
    "_kind STRING, _topic STRING, _partition INT, _offset LONG, _key BINARY, _value BINARY,"
    " _headers STRING, _reason STRING, _watermark_us LONG, _group INT, _counted LONG, _late LONG,"
    " _partly_late LONG, _malformed LONG, _duplicate LONG, _windows LONG"
)
_PLACE = "topic STRING, partition INT, offset LONG"
_HEADERS = "array<struct<key string, value binary>>"


def is_tagged(frame: DataFrame) -> bool:
    """Whether a frame contains more than results."""
    return "_kind" in frame.columns


def results(batch: DataFrame) -> DataFrame:
    """Return only a batch's results."""
    plain = [name for name in batch.columns if not name.startswith("_")]
    return batch.where(F.col("_kind") == "result").select(*plain)


def rejected(batch: DataFrame) -> DataFrame:
    """Return late and malformed records, unchanged.

    `topic, partition, offset, key, value, headers, reason, watermark`; only late records have the
    last one.
    """
    return batch.where(F.col("_kind") == "rejected").select(
        *(F.col(f"_{name}").alias(name) for name in ("topic", "partition", "offset")),
        *(F.col(f"_{name}").alias(name) for name in ("key", "value")),
        F.from_json("_headers", _HEADERS).alias("headers"),
        F.col("_reason").alias("reason"),
        F.timestamp_micros("_watermark_us").alias("watermark"),
    )


def unfit(batch: DataFrame, columns: Sequence[str], reason: Column) -> DataFrame:
    """Return the results that have a reason as `rejected` returns records: the row as JSON.

    `topic, partition, offset` are null where a result is not of one record.
    """
    is_result = F.col("_kind") == "result" if is_tagged(batch) else F.lit(True)  # noqa: FBT003 - Spark's API
    at = dict(each.split(" ") for each in _PLACE.split(", "))
    row = F.to_json(F.struct(*(F.col(f"`{name}`") for name in columns)))
    return (
        batch.where(is_result)
        .withColumn("_unfit", reason)
        .where(F.col("_unfit").isNotNull())
        .select(
            *(
                (F.col(f"_{name}") if is_tagged(batch) else F.lit(None)).cast(kind).alias(name)
                for name, kind in at.items()
            ),
            F.lit(None).cast("binary").alias("key"),
            row.cast("binary").alias("value"),
            F.lit(None).cast(_HEADERS).alias("headers"),
            F.col("_unfit").alias("reason"),
            F.lit(None).cast("timestamp").alias("watermark"),
        )
    )


def progress(batch: DataFrame) -> DataFrame:
    """Return the progress of each group of keys in this batch, for each source partition.

    `group, topic, partition, counted, late, partly_late, malformed, duplicate, windows,
    watermark_us`. Records that are late for some of their windows are among the counted.
    """
    counts = ("counted", "late", "partly_late", "malformed", "duplicate")
    names = ("group", "topic", "partition", *counts, "windows")
    return batch.where(F.col("_kind") == "progress").select(
        *(F.col(f"_{name}").alias(name) for name in (*names, "watermark_us"))
    )
