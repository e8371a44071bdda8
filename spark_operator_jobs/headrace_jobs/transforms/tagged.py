"""One frame with everything that leaves a query: results, rejected records, and progress.

A streaming query has one output. A transform that rejects records returns a tagged frame: the
columns of its results, and those of `SIDE`, whose names begin with `_`. The writer of a batch
computes it once and splits it with `results`, `rejected` and `progress`, without reading again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

from headrace_jobs.transforms.json_text import as_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from pyspark.sql import Column, DataFrame

__all__ = [
    "COUNTS",
    "SIDE",
    "collect_progress",
    "counts",
    "is_tagged",
    "progress",
    "rejected",
    "results",
    "unfit",
]

#: `_kind` is `result`, `rejected` or `progress`, and determines which of the others are set.
#: `_headers` is JSON; `_watermark_us` is the watermark that a late record missed, or a source
#: partition's own.
SIDE = (
    "_kind STRING, _topic STRING, _partition INT, _offset LONG, _key BINARY, _value BINARY,"
    " _headers STRING, _reason STRING, _watermark_us LONG, _group INT, _counted LONG, _late LONG,"
    " _partly_late LONG, _malformed LONG, _duplicate LONG, _windows LONG"
)
#: What became of a batch's records. Those that are late for some of their windows are counted, too.
COUNTS = ("counted", "late", "partly_late", "malformed", "duplicate")
_OBSERVED = "headrace_counts"
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
    row = as_json(F.struct(*(F.col(f"`{name}`") for name in columns)))
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
    watermark_us`.
    """
    names = ("group", "topic", "partition", *COUNTS, "windows")
    return batch.where(F.col("_kind") == "progress").select(
        *(F.col(f"_{name}").alias(name) for name in (*names, "watermark_us"))
    )


def counts() -> list[Column]:
    """Return what to observe of a tagged frame: `rows`, its results, and the sums of `COUNTS`."""
    rows = F.count_if(F.col("_kind") == "result").alias("rows")
    return [rows, *(F.sum(f"_{name}").alias(name) for name in COUNTS)]


def collect_progress(batch: DataFrame) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Compute the rows of `progress`, and a persisted batch's `counts` in the same pass.

    Observed in the query itself, above what is persisted, counts would lack the rows of a task that
    failed behind them: its next attempt finds the rows where the first one kept them.
    """
    frame = progress(batch.observe(_OBSERVED, *counts()))
    rows = [row.asDict() for row in frame.collect()]
    java: Any = frame._jdf  # noqa: SLF001 - an Observation waits for an event, which Spark may drop
    observed = java.queryExecution().observedMetrics().apply(_OBSERVED)
    found = {name: int(observed.getAs(name) or 0) for name in ("rows", *COUNTS)}
    return rows, found
