"""Event-time windows over a stream that loses no rows silently.

Spark's own watermark is one maximum over all partitions of a source. After a backlog or a rewind,
or with one clock that runs ahead, it drops rows that are on time, and it counts groups, not rows.
Here every key has a watermark for each source partition (`window_fold.py`), kept by
`transformWithState`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use
from pyspark.sql import types as T  # noqa: N812 - the same

from headrace_jobs.transforms.key_groups import GroupProcessor, fold_groups, judge_texts
from headrace_jobs.transforms.missed import MISSED, with_missed
from headrace_jobs.transforms.times import judge_future
from headrace_jobs.transforms.window_fold import FoldState, Step, WindowSpec, fold

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from pyspark.sql import DataFrame

__all__ = ["event_time_windows"]

_DECIMAL_DIGITS_MAX = 38  # Spark's
# Python's values of these cannot be compared.
_UNORDERED: Final = (T.ArrayType, T.MapType, T.StructType, T.VariantType)


def event_time_windows(rows: DataFrame, spec: WindowSpec) -> DataFrame:
    """Aggregate a stream's rows by key and window, with late and malformed rows in the output.

    Takes the arguments of `fold_groups`. Returns `window_start, window_end`, the key's columns, the
    aggregates, `revision` (0, and more if it is written again), and the columns of `tagged.SIDE`.
    Of rows that do not stream it returns all windows, without those columns: there nothing is late.
    Rows without a number in a column that is aggregated are malformed, and so are those whose event
    time is too far after the record's own `timestamp` (`WindowSpec.future_us`); a key may be null.
    Raises `ValueError` for an aggregate that a column's type does not have.
    """
    _refuse_aggregates(rows.schema, spec)
    numbers = sorted({column for column, how in spec.aggregates.values() if how != "count"})
    rows = judge_future(_judge_numbers(rows, numbers), spec.future_us)
    if not rows.isStreaming:
        return _past_windows(judge_texts(rows, spec.keys), spec)
    out = fold_groups(
        rows,
        keys=spec.keys,
        columns=numbers,
        results=_result_schema(rows, spec),
        processor=lambda columns: _WindowProcessor(spec, columns),
        is_update=spec.is_update,
    )
    return out.select(
        F.timestamp_micros("start_us").alias("window_start"),
        F.timestamp_micros("end_us").alias("window_end"),
        *spec.keys,
        *spec.aggregates,
        "revision",
        *(F.col(name) for name in out.columns if name.startswith("_")),
    )


def _refuse_aggregates(schema: T.StructType, spec: WindowSpec) -> None:
    """Raise `ValueError` for a sum of what is no number, or an extreme of what has no order."""
    for name, (column, how) in spec.aggregates.items():
        kind = schema[column].dataType
        what = f"{name}: a {how} of {column}, which is {kind.simpleString().upper()}"
        if how == "sum" and isinstance(kind, T.BooleanType):
            raise ValueError(
                f"{what} and no number: give a column {column}.cast('int'), whose sum counts where"
                " it is true"
            )
        if how == "sum" and not isinstance(kind, T.NumericType):
            raise ValueError(f"{what}: cast it to a number")
        if how in ("min", "max") and isinstance(kind, _UNORDERED):
            raise ValueError(f"{what} and has no order here: take one of its fields or elements")


def _judge_numbers(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    reasons = []
    for name in names:
        is_none = F.col(name).isNull()
        if isinstance(rows.schema[name].dataType, T.FractionalType):
            is_none |= F.isnan(name)
        reasons.append(F.when(is_none, F.lit(f"{name} is no number")))
    return rows.withColumn("reason", F.coalesce("reason", *reasons)) if reasons else rows


def _past_windows(rows: DataFrame, spec: WindowSpec) -> DataFrame:
    size, slide = (f"{each} microseconds" for each in (spec.window_us, spec.slide_us))
    aggregates = [
        getattr(F, how)(F.lit(1) if how == "count" else column).alias(name)
        for name, (column, how) in spec.aggregates.items()
    ]
    rows = rows.where(F.col("reason").isNull())
    missed = with_missed(rows)
    every = (rows if missed is None else missed).withColumn(
        "_window", F.window("event_time", size, slide)
    )
    if missed is not None:
        every = every.where(F.col("_window.end") <= F.coalesce(MISSED, "_window.end"))
    windows = every.groupBy(F.col("_window").alias("window"), *spec.keys).agg(*aggregates)
    return windows.select(
        F.col("window.start").alias("window_start"),
        F.col("window.end").alias("window_end"),
        *spec.keys,
        *spec.aggregates,
        F.lit(0).cast("long").alias("revision"),
    )


def _result_schema(rows: DataFrame, spec: WindowSpec) -> T.StructType:
    schema = T.StructType([rows.schema[name] for name in spec.keys])
    schema = schema.add("start_us", T.LongType()).add("end_us", T.LongType())
    for name, (column, how) in spec.aggregates.items():
        given = rows.schema[column].dataType
        of = {"count": T.LongType(), "sum": _sum_type(given)}
        schema = schema.add(name, of.get(how, given))
    return schema.add("revision", T.LongType())


def _sum_type(given: T.DataType) -> T.DataType:
    """Return the type that Spark's own `sum` has."""
    if isinstance(given, T.DecimalType):
        digits = min(given.precision + 10, _DECIMAL_DIGITS_MAX)
        return T.DecimalType(digits, given.scale)
    return T.LongType() if isinstance(given, T.IntegralType) else T.DoubleType()


class _WindowProcessor(GroupProcessor):
    def __init__(self, spec: WindowSpec, columns: Sequence[str]) -> None:
        super().__init__(columns)
        self._spec = spec

    def fold(
        self, state: bytes | None, rows: pd.DataFrame, *, now_ms: int, is_silent: bool
    ) -> tuple[bytes, Step]:
        """Fold rows into windows."""
        before = None if state is None else FoldState.from_bytes(state)
        step = fold(before, rows, spec=self._spec, now_ms=now_ms, is_silent=is_silent)
        return step.state.to_bytes(), step
