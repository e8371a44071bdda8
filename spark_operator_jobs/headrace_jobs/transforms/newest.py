"""The newest value of each key, from events that carry the whole state of their key.

Events come in any order: a key's newest event time wins, and older events change nothing. The
results are upserts, one for each key that changed in a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use
from pyspark.sql import types as T  # noqa: N812 - the same

from headrace_jobs.transforms.json_text import is_json_object, json_text
from headrace_jobs.transforms.key_groups import GroupProcessor, fold_groups
from headrace_jobs.transforms.newest_fold import NewestSpec, NewestStep, fold_newest
from headrace_jobs.transforms.times import event_time, judge_future
from headrace_jobs.transforms.window_fold import FUTURE_US

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from pyspark.sql import DataFrame

__all__ = ["newest_by_key", "newest_events"]


def newest_by_key(
    records: DataFrame,
    *,
    key_field: str,
    time_field: str,
    ttl_ms: int,
    future_us: int | None = FUTURE_US,
) -> DataFrame:
    """Return each key's newest JSON event, live, with malformed records (`tagged.SIDE`).

    `records`: Kafka's columns; values are JSON objects with both fields, the time in ISO 8601 or
    milliseconds since 1970. Returns `key, event_time, value`: the event unchanged.
    """
    text = F.col("event")
    judged = records.withColumn("event", json_text(F.col("value"))).select(
        "*",
        F.get_json_object(text, f"$.{key_field}").alias("event_key"),
        event_time(F.get_json_object(text, f"$.{time_field}")).alias("event_time"),
    )
    reason = (
        F.when(F.col("value").isNull(), "it has no value")
        .when(~is_json_object(text), "it is no JSON object")
        .when(F.coalesce(F.length("event_key") == 0, F.lit(True)), f"{key_field} is missing")  # noqa: FBT003 - Spark's API
        .when(F.col("event_time").isNull(), f"{time_field} is neither ISO 8601 nor milliseconds")
    )
    spec = NewestSpec(
        keys=("event_key",), value_columns=("event",), ttl_ms=ttl_ms, future_us=future_us
    )
    rows = judged.withColumn("reason", reason)
    newest = newest_events(rows, spec) if records.isStreaming else _newest_of_past(rows, spec)
    side = [F.col(name) for name in newest.columns if name.startswith("_")]
    return newest.select(
        F.col("event_key").alias("key"), "event_time", F.col("event").alias("value"), *side
    )


def newest_events(rows: DataFrame, spec: NewestSpec) -> DataFrame:
    """Return a stream's newest row of each key when it changes, without a value once it expires.

    Takes what `fold_groups` takes.
    Returns the key's and the value's columns, `event_time`, and the columns of `tagged.SIDE`.
    """
    rows = judge_future(rows, spec.future_us)
    schema = T.StructType([rows.schema[name] for name in (*spec.keys, *spec.value_columns)])
    schema = schema.add("event_us", T.LongType())
    out = fold_groups(
        rows,
        keys=spec.keys,
        columns=spec.value_columns,
        results=schema,
        processor=lambda columns: _NewestProcessor(spec, columns),
        is_update=True,
    )
    side = [F.col(name) for name in out.columns if name.startswith("_")]
    return out.select(
        *spec.keys, *spec.value_columns, F.timestamp_micros("event_us").alias("event_time"), *side
    )


def _newest_of_past(rows: DataFrame, spec: NewestSpec) -> DataFrame:
    """Return the newest row of each key of a batch frame, by the same order."""
    newest = F.max_by(
        F.struct("event", "event_time"), F.struct("event_time", "offset", "partition")
    )
    return (
        judge_future(rows, spec.future_us)
        .where(F.col("reason").isNull())
        .groupBy("event_key")
        .agg(newest.alias("newest"))
        .select("event_key", "newest.*")
    )


class _NewestProcessor(GroupProcessor):
    def __init__(self, spec: NewestSpec, columns: Sequence[str]) -> None:
        super().__init__(columns)
        self._spec = spec

    def fold(
        self,
        state: bytes | None,
        rows: pd.DataFrame,
        *,
        now_ms: int,
        is_silent: bool,  # noqa: ARG002 - nothing is waited for
    ) -> tuple[bytes, NewestStep]:
        """Fold rows into the table of keys."""
        step = fold_newest(state, rows, spec=self._spec, now_ms=now_ms)
        return step.state, step
