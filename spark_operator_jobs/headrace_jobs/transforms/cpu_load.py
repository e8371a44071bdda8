"""CPU readings to averages and maxima in event-time windows.

A reading is a JSON object `{"hostname": "web-1", "cpu": 0, "usage": 12.5, "occurred_at":
"2026-01-31T12:00:00.250Z"}`: `cpu` an integer from 0, `usage` in percent (0 to 100), `occurred_at`
ISO 8601 (without an offset it is UTC, given a session in UTC). Whatever else arrives is malformed:
marked and set aside, never fatal, because one bad producer must not stop a job that others need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "FUTURE_TOLERANCE_SECONDS",
    "parse_readings",
    "rejected_records",
    "usage_windows",
    "well_formed_readings",
]

# A clock that runs ahead would move the watermark for everybody and make all others' records late,
# so an event time this far after the record's own timestamp counts as malformed.
FUTURE_TOLERANCE_SECONDS = 3600

_READING = "hostname STRING, cpu INT, usage DOUBLE, occurred_at STRING"
_ISO_8601 = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?$"
_USAGE_PERCENT_MAX = 100.0


def parse_readings(records: DataFrame) -> DataFrame:
    """Parse the column `value` (binary or string) of Kafka's source.

    With a column `timestamp` (the record's own), event times far in the future are malformed.
    Returns `hostname, cpu, usage, occurred_at, malformed`.
    """
    return _judged(records).select(
        F.col("reading.hostname").alias("hostname"),
        F.col("reading.cpu").alias("cpu"),
        F.col("reading.usage").alias("usage"),
        F.col("event_time").alias("occurred_at"),
        F.col("reason").isNotNull().alias("malformed"),
    )


def well_formed_readings(parsed: DataFrame) -> DataFrame:
    """Keep what can be counted. Returns `hostname, cpu, usage, occurred_at`."""
    return parsed.where(~F.col("malformed")).select("hostname", "cpu", "usage", "occurred_at")


def rejected_records(records: DataFrame) -> DataFrame:
    """Keep the records that are malformed, as they came. Returns their columns and `reason`."""
    return (
        _judged(records)
        .where(F.col("reason").isNotNull())
        .select(*(F.col(name) for name in records.columns), "reason")
    )


def usage_windows(
    readings: DataFrame, *, window: str, watermark: str, slide: str | None = None
) -> DataFrame:
    """Average and maximum of usage for each host, CPU and event-time window.

    `window`, `slide` and `watermark` are Spark intervals ("10 seconds"); without a `slide` windows
    do not overlap. On a stream a reading that is older than the newest one by more than the
    watermark may be dropped, and in append mode a window comes out once, when the watermark passes
    its end. Returns `window_start, window_end, hostname, cpu, usage_avg, usage_max, readings`.
    """
    return (
        readings.withWatermark("occurred_at", watermark)
        .groupBy(F.window("occurred_at", window, slide), "hostname", "cpu")
        .agg(
            F.avg("usage").alias("usage_avg"),
            F.max("usage").alias("usage_max"),
            F.count("usage").alias("readings"),
        )
        .select(
            F.col("window.start").alias("window_start"),
            F.col("window.end").alias("window_end"),
            "hostname",
            "cpu",
            "usage_avg",
            "usage_max",
            "readings",
        )
    )


def _judged(records: DataFrame) -> DataFrame:
    """Add `reading`, `event_time`, and `reason`: why it is malformed, null when it is not."""
    parsed = records.select(
        "*",
        F.from_json(F.col("value").cast("string"), _READING).alias("reading"),
    ).withColumn("event_time", _event_time(F.col("reading.occurred_at")))
    fields = [F.col(f"reading.{name}") for name in ("hostname", "cpu", "usage", "occurred_at")]
    event_time = F.col("event_time")
    rules = [
        (F.col("value").isNotNull(), "it has no value"),
        (F.coalesce(*(field.cast("string") for field in fields)).isNotNull(), "it is no reading"),
        (F.length(F.trim("reading.hostname")) > 0, "hostname is missing or empty"),
        (F.col("reading.cpu") >= 0, "cpu is no integer from 0"),
        (F.col("reading.usage").between(0.0, _USAGE_PERCENT_MAX), "usage is no number in 0..100"),
        (event_time.isNotNull(), "occurred_at is no ISO 8601 time"),
        (event_time >= F.timestamp_seconds(F.lit(0)), "occurred_at is before 1970"),
    ]
    if "timestamp" in records.columns:
        tolerance = F.make_dt_interval(secs=F.lit(FUTURE_TOLERANCE_SECONDS))
        rules.append(
            (
                event_time <= F.col("timestamp") + tolerance,
                f"occurred_at is more than {FUTURE_TOLERANCE_SECONDS} s after the record",
            )
        )
    # The first rule that does not hold; one over null does not.
    reasons = [
        F.when(~F.coalesce(holds, F.lit(False)), F.lit(reason))  # noqa: FBT003 - Spark's API
        for holds, reason in rules
    ]
    return parsed.withColumn("reason", F.coalesce(*reasons))


def _event_time(text: Column) -> Column:
    """Return the timestamp that an ISO 8601 text names, else null.

    Spark's cast accepts more, `12:00` as that time of the current day among it: the answer would
    depend on when the record was read.
    """
    return F.when(text.rlike(_ISO_8601), text.try_cast("timestamp"))
