"""CPU readings to averages and maxima in event-time windows.

A reading is a JSON object `{"hostname": "web-1", "cpu": 0, "usage": 12.5, "occurred_at":
"2026-01-31T12:00:00.250Z"}`: `cpu` an integer from 0 or a name, as a number or a string (`0` and
`"0"` are one CPU), `usage` in percent (0 to 100), `occurred_at` ISO 8601 (without an offset it is
UTC, given a session in UTC) or milliseconds since 1970. Everything else is malformed: it is marked
and rejected, never fatal, because one bad producer must not stop a job that others need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

from headrace_jobs.transforms.event_time import event_time_windows
from headrace_jobs.transforms.json_text import with_json
from headrace_jobs.transforms.times import event_time
from headrace_jobs.transforms.window_fold import WindowSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "FUTURE_TOLERANCE_SECONDS",
    "live_usage_windows",
    "parse_readings",
    "past_usage_windows",
    "rejected_records",
    "usage_windows",
    "well_formed_readings",
]

# A clock that runs ahead would advance the watermark and make all other producers' records late, so
# an event time this far after the record's own timestamp counts as malformed.
FUTURE_TOLERANCE_SECONDS = 3600

_READING = "hostname STRING, cpu STRING, usage DOUBLE, occurred_at STRING"
_CPU = r"^(\d+|[A-Za-z][\w.:-]*)\z"
_USAGE_PERCENT_MAX = 100.0
# As integers: 2 ** 63 is 21 million readings of 100 percent in one window.
_USAGE_SCALE = 2.0**32
_USAGE_DECIMALS = 9


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
    """Keep the valid readings. Returns `hostname, cpu, usage, occurred_at`."""
    return parsed.where(~F.col("malformed")).select("hostname", "cpu", "usage", "occurred_at")


def rejected_records(records: DataFrame) -> DataFrame:
    """Keep the malformed records, unchanged. Returns their columns and `reason`."""
    return (
        _judged(records)
        .where(F.col("reason").isNotNull())
        .select(*(F.col(name) for name in records.columns), "reason")
    )


def usage_windows(readings: DataFrame, *, window_ms: int, slide_ms: int | None = None) -> DataFrame:
    """Average and maximum of usage for each host, CPU and event-time window of past readings.

    Windows are as long as `window_ms` and begin every `slide_ms`, or do not overlap. Returns
    `window_start, window_end, hostname, cpu, usage_avg, usage_max, readings, revision`.
    """
    slide = f"{slide_ms} milliseconds" if slide_ms else None
    return _averaged(
        _prepared(readings)
        .groupBy(F.window("occurred_at", f"{window_ms} milliseconds", slide), "hostname", "cpu")
        .agg(
            F.sum("usage_scaled").alias("usage_sum"),
            F.max("usage").alias("usage_max"),
            F.count("usage").alias("readings"),
            F.lit(0).cast("long").alias("revision"),
        )
        .select("window.start", "window.end", "*")
        .withColumnsRenamed({"start": "window_start", "end": "window_end"})
    )


def live_usage_windows(
    records: DataFrame,
    *,
    window_ms: int,
    watermark_ms: int,
    slide_ms: int | None = None,
    is_update: bool = False,
) -> DataFrame:
    """Return the windows of a stream of Kafka's records, together with rejected records.

    A reading counts until a reading of the same host and CPU is newer than the end of its window by
    more than the watermark; then the window is written, once. With `is_update` it is written
    whenever it has changed. Returns the columns of `usage_windows` and those of
    `event_time_windows`.
    """
    spec = WindowSpec(
        keys=("hostname", "cpu"),
        aggregates={
            "usage_sum": ("usage_scaled", "sum"),
            "usage_max": ("usage", "max"),
            "readings": ("usage", "count"),
        },
        window_us=window_ms * 1000,
        slide_us=(slide_ms or window_ms) * 1000,
        lateness_us=watermark_ms * 1000,
        future_us=None,  # it is among the rules below
        is_update=is_update,
    )
    judged = _judged(records).withColumn("occurred_at", F.col("event_time"))
    fields = ("hostname", "cpu", "usage")
    readings = judged.withColumns({name: F.col(f"reading.{name}") for name in fields})
    return _averaged(event_time_windows(_prepared(readings), spec))


def past_usage_windows(
    records: DataFrame, *, window_ms: int, slide_ms: int | None = None
) -> DataFrame:
    """Return the windows of past records: the same as from the stream, if none of them was late."""
    return live_usage_windows(records, window_ms=window_ms, slide_ms=slide_ms, watermark_ms=0)


def _prepared(readings: DataFrame) -> DataFrame:
    """Add usage as an integer: a sum of integers does not depend on their order."""
    scaled = F.rint(F.col("usage") * F.lit(_USAGE_SCALE)).cast("long")
    return readings.withColumn("usage_scaled", scaled)


def _averaged(windows: DataFrame) -> DataFrame:
    side = [name for name in windows.columns if name.startswith("_")]
    average = F.col("usage_sum") / F.lit(_USAGE_SCALE) / F.col("readings")
    return windows.select(
        "window_start",
        "window_end",
        "hostname",
        "cpu",
        F.round(average, _USAGE_DECIMALS).alias("usage_avg"),
        "usage_max",
        "readings",
        "revision",
        *side,
    )


def _is_cpu(text: Column) -> Column:
    # As most numbers are written, without a look by a regular expression, which takes longer.
    number = text.try_cast("int")
    return ((number >= 0) & (number.cast("string") == text)) | text.rlike(_CPU)


def _judged(records: DataFrame) -> DataFrame:
    """Add `reading`, `event_time`, and `reason`: why it is malformed, null when it is not."""
    parsed = with_json(records, _READING, "reading").withColumn(
        "event_time", event_time(F.col("reading.occurred_at"))
    )
    fields = [F.col(f"reading.{name}") for name in ("hostname", "cpu", "usage", "occurred_at")]
    at = F.col("event_time")
    rules = [
        (F.col("value").isNotNull(), "it has no value"),
        (F.coalesce(*(field.cast("string") for field in fields)).isNotNull(), "it is no reading"),
        (F.trim("reading.hostname") != "", "hostname is missing or empty"),
        (_is_cpu(F.col("reading.cpu")), "cpu is neither an integer from 0 nor a name"),
        (F.col("reading.usage").between(0.0, _USAGE_PERCENT_MAX), "usage is no number in 0..100"),
        (at.isNotNull(), "occurred_at is neither ISO 8601 nor milliseconds"),
        (at >= F.timestamp_seconds(F.lit(0)), "occurred_at is before 1970"),
    ]
    if "timestamp" in records.columns:
        tolerance = F.make_dt_interval(secs=F.lit(FUTURE_TOLERANCE_SECONDS))
        rules.append(
            (
                at <= F.col("timestamp") + tolerance,
                f"occurred_at is more than {FUTURE_TOLERANCE_SECONDS} s after the record",
            )
        )
    # The first violated rule; a rule over null is violated.
    reasons = [
        F.when(~F.coalesce(holds, F.lit(False)), F.lit(reason))  # noqa: FBT003 - Spark's API
        for holds, reason in rules
    ]
    return parsed.withColumn("reason", F.coalesce(*reasons))
