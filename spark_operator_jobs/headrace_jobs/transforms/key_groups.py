"""Groups a stream's rows by groups of keys, for a Python fold with one state per group.

Keys share `KEY_GROUPS` groups; a batch makes one call into Python for each, so more executors than
groups would be idle. Late and malformed rows leave the query in the same output as the results
(`tagged.py`).

Rows are packed by group, as Arrow streams, before they are shuffled: Spark hands single rows over
to a stateful fold one at a time, which took most of a batch's time.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use
from pyspark.sql import types as T  # noqa: N812 - the same
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from headrace_jobs.sources.clock import read_ticks
from headrace_jobs.transforms.tagged import SIDE
from headrace_jobs.transforms.window_fold import NEVER_US

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

__all__ = ["KEY_GROUPS", "GroupProcessor", "GroupStep", "fold_groups", "judge_texts"]

KEY_GROUPS = 16
# Once per this many records, all groups get a row without a reading, to find silent keys.
TICK_RECORDS = 256

# Beside the columns of the fold. `transformWithStateInPandas` renames those that begin with `_`.
# These make up most of a row, and are read again only where it is late or malformed.
_PAYLOAD = ("record_key", "record_value", "record_headers")
_PAYLOAD_ROW = "payload_row"
# Beside an integer that may be null: 1 where it is. With a null, pandas would turn all of a batch's
# integers into floats, which round those from 2^53 on.
_NULL = "null_of_"
# Arrow and Spark turn these into the same values of pandas'.
_PLAIN: Final = (T.StringType, T.BinaryType, T.IntegralType, T.FractionalType, T.BooleanType)
_LATE = "late: the watermark has passed its windows"
_PARTLY_LATE = (
    "partly late: the watermark has passed some of its windows, and it counts in the others"
)
_PACKED: Final = {"key_group": "INT", "rows": "BINARY"}


class GroupStep(Protocol):
    """The result of a fold over a group's rows of one batch."""

    @property
    def results(self) -> pd.DataFrame:
        """The columns of the query's results."""

    @property
    def late(self) -> pd.DataFrame:
        """The given rows that came too late, with `watermark_us`.

        And `is_counted` if some of them are in a part of their results.
        """

    @property
    def partitions(self) -> pd.DataFrame:
        """For each source partition `partition, counted, late, watermark_us`.

        And `topic` if there are several, `partly_late` and `duplicate` if they are known.
        """

    @property
    def open_rows(self) -> int:
        """How many rows the state has."""


class GroupProcessor(StatefulProcessor):
    """Calls `fold` with a group's rows of one batch, and keeps its result as state.

    If it `wants_ticks`, the rows include rows of other groups that show their partition's progress;
    these have a `turn` other than 0.
    """

    wants_ticks = False

    def __init__(self, columns: Sequence[str]) -> None:
        """Take the names of all output columns."""
        self._columns = list(columns)

    @abstractmethod
    def fold(
        self, state: bytes | None, rows: pd.DataFrame, *, now_ms: int, is_silent: bool
    ) -> tuple[bytes, GroupStep]:
        """Fold well-formed rows into a group's state; return the new one and a `GroupStep`.

        `is_silent`: no topic of the query had a record for the idle timeout before this batch.
        """

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Take the state handle of the present group."""
        self._state = handle.getValueState("group", "state BINARY")

    def handleInputRows(  # noqa: N802 - Spark's interface
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: ARG002, N803 - the same
    ) -> Iterator[pd.DataFrame]:
        """Fold in the rows; return the query's output for this group."""
        given, payload, now_ms = _unpacked(rows)
        topic = given["record_topic"].iloc[0]
        is_tick = given["offset"].to_numpy() < 0
        if is_tick.any():
            given = given[~is_tick].reset_index(drop=True)
        is_malformed, is_own = given["reason"].notna().to_numpy(), given["turn"].to_numpy() == 0
        malformed = given[is_malformed & is_own]
        stored = self._state.get()
        state = None if stored is None else bytes(stored[0])
        is_wanted = ~is_malformed & (is_own | self.wants_ticks)
        well_formed = given if is_wanted.all() else given[is_wanted]
        state, step = self.fold(state, well_formed, now_ms=now_ms, is_silent=bool(is_tick.any()))
        self._state.update((state,))
        # A frame without rows would cost as much as one of a hundred.
        if len(step.results):
            yield self._tagged("result", step.results)
        if len(malformed):
            raw = _raw(malformed, payload)
            yield self._tagged("rejected", raw, _reason=malformed["reason"])
        if len(step.late):
            late = _raw(step.late, payload).assign(_watermark_us=step.late["watermark_us"])
            reason: Any = _LATE
            if "is_counted" in step.late:
                reason = np.where(step.late["is_counted"], _PARTLY_LATE, _LATE)
            yield self._tagged("rejected", late, _reason=reason)
        partitions = step.partitions
        if "topic" not in partitions:
            partitions = partitions.assign(topic=topic)
        partitions = _with_malformed(partitions, malformed)
        if len(partitions):
            yield self._tagged(
                "progress",
                partitions.add_prefix("_"),
                _group=key[0],
                _windows=step.open_rows,
            )

    def close(self) -> None:
        """Do nothing: the state is Spark's."""

    def _tagged(self, kind: str, frame: pd.DataFrame, **columns: Any) -> pd.DataFrame:
        given = dict(frame.items()) | columns | {"_kind": kind}
        return pd.DataFrame(
            {name: given.get(name) for name in self._columns}, index=frame.index, copy=False
        )


def fold_groups(
    rows: DataFrame,
    *,
    keys: Sequence[str],
    columns: Sequence[str],
    results: T.StructType,
    processor: Any,
    is_update: bool,
) -> DataFrame:
    """Run a fold over a stream's rows. Returns the columns of `results` and those of `tagged.SIDE`.

    Takes the columns of Kafka's source, `keys` and `columns` for the fold, `event_time`, and
    `reason`, which is null for a well-formed row. `processor` is called with the names of all
    columns, and returns a `GroupProcessor`. All groups get one of every `TICK_RECORDS` records, or
    those with a true column `is_tick`, and the ticks of the session's clock. Rows without an
    `event_time`, or with a key or a column of text that is not UTF-8, are malformed.
    """
    rows = judge_texts(rows, [*keys, *columns])
    is_timeless = F.when(F.col("event_time").isNull(), F.lit("event_time is null"))
    rows = rows.withColumn("reason", F.coalesce("reason", is_timeless))
    has_ticks = "is_tick" in rows.columns
    is_tick = F.col("is_tick") if has_ticks else F.col("offset") % TICK_RECORDS == 0
    has_headers = "headers" in rows.columns
    own = F.pmod(
        F.hash(*keys, F.when(F.col("reason").isNotNull(), F.col("offset"))), F.lit(KEY_GROUPS)
    )
    every = F.array(*(F.lit(group) for group in range(KEY_GROUPS)))
    grouped = rows.select(
        *chain.from_iterable(_exact(rows, name) for name in dict.fromkeys([*keys, *columns])),
        F.col("partition").cast("int").alias("partition"),
        "offset",
        F.coalesce(F.unix_micros("event_time"), F.lit(0)).alias("event_us"),
        "reason",
        F.col("topic").alias("record_topic"),
        F.col("key").alias("record_key"),
        F.col("value").alias("record_value"),
        (F.to_json("headers") if has_headers else F.lit(None).cast("string")).alias(
            "record_headers"
        ),
        F.posexplode(F.when(is_tick, F.concat(F.array(own), every)).otherwise(F.array(own))).alias(
            "turn", "key_group"
        ),
    )
    grouped = _with_clock(grouped)
    side: T.StructType = T.StructType.fromDDL(SIDE)  # type: ignore[assignment] # any type has it
    schema = T.StructType([*results.fields, *side.fields])
    # A constant of the batch: beside the rows' own columns, Spark would generate and compile the
    # code for all of them anew in each batch.
    now_ms = F.unix_millis(F.current_timestamp())
    return (
        _packed(grouped)
        .withColumn("now_ms", now_ms)
        .groupBy("key_group")
        .transformWithStateInPandas(
            statefulProcessor=processor([field.name for field in schema]),
            outputStructType=schema,
            outputMode="Update" if is_update else "Append",
            # With timers, Spark's available-now trigger never ends.
            timeMode="None",
        )
    )


def judge_texts(rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return the rows with a reason, and nulls, where such a column has text that is not UTF-8."""
    texts = [name for name in names if isinstance(rows.schema[name].dataType, T.StringType)]
    reasons = [
        F.when(~F.is_valid_utf8(name), F.lit(f"{name} is not UTF-8"))
        for name in dict.fromkeys(texts)
    ]
    judged = {"reason": F.coalesce("reason", *reasons)} if texts else {}
    valid = {name: F.when(F.is_valid_utf8(name), F.col(name)) for name in texts}
    return rows.withColumns(judged | valid)


def _packed(grouped: DataFrame) -> DataFrame:
    """Return `key_group, rows`: many rows of a group as one Arrow stream.

    Rows with values that are not all plain stay as they are.
    """
    if not all(isinstance(field.dataType, _PLAIN) for field in grouped.schema.fields):
        return grouped
    schema = ", ".join(f"{name} {kind}" for name, kind in _PACKED.items())
    return grouped.mapInArrow(_pack, schema)


def _pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        groups = batch.column("key_group").to_numpy(zero_copy_only=False)
        order = np.argsort(groups, kind="stable")
        found, begins = np.unique(groups[order], return_index=True)
        ordered = batch.take(pa.array(order))
        packed = []
        for begin, end in pairwise([*begins, len(order)]):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, ordered.schema) as writer:
                writer.write_batch(ordered.slice(begin, end - begin))
            packed.append(sink.getvalue().to_pybytes())
        yield pa.RecordBatch.from_arrays(
            [pa.array(found, pa.int32()), pa.array(packed, pa.binary())],
            names=list(_PACKED),
        )


def _unpacked(
    frames: Iterator[pd.DataFrame],
) -> tuple[pd.DataFrame, pa.Table | pd.DataFrame, int]:
    """Return a group's rows without their payload, the payload of each, and the batch's time."""
    given = pd.concat(list(frames), ignore_index=True)
    now_ms = int(given.pop("now_ms").iloc[0])
    payload: pa.Table | pd.DataFrame
    if set(given.columns) == set(_PACKED):
        tables = [pa.ipc.open_stream(packed).read_all() for packed in given["rows"]]
        table = pa.concat_tables(tables)
        payload, given = table.select(_PAYLOAD), table.drop_columns(list(_PAYLOAD)).to_pandas()
    else:
        payload, given = given[[*_PAYLOAD]], given.drop(columns=[*_PAYLOAD])
    given = _with_nulls(given)
    return given.assign(**{_PAYLOAD_ROW: np.arange(len(given))}), payload, now_ms


def _with_malformed(partitions: pd.DataFrame, malformed: pd.DataFrame) -> pd.DataFrame:
    """Add how many rows of each source partition were malformed, also of those not yet there."""
    watermarks = partitions["watermark_us"].fillna(NEVER_US).astype("int64")
    partitions = partitions.assign(watermark_us=watermarks, malformed=np.int64(0))
    if malformed.empty:
        return partitions
    at = ["topic", "partition"]
    bad = malformed.rename(columns={"record_topic": "topic"}).groupby(at).size()
    every = partitions.drop(columns="malformed").set_index(at)
    every = every.join(bad.rename("malformed"), how="outer")
    filled = every.fillna({"watermark_us": NEVER_US}).fillna(0)
    return filled.astype("int64").reset_index(names=at)


def _with_clock(grouped: DataFrame) -> DataFrame:
    """Add a row without a record, of offset -1, for each group and tick of the session's clock."""
    ticks = read_ticks(grouped.sparkSession, KEY_GROUPS)
    if ticks is None:
        return grouped
    columns = {
        "partition": F.lit(-1),
        "offset": F.lit(-1),
        "record_topic": F.col("topic"),
        "turn": F.lit(1),
        "key_group": F.col("key_group"),
    }
    return grouped.unionByName(
        ticks.select(
            *(
                columns.get(field.name, _nothing(field.dataType))
                .cast(field.dataType)
                .alias(field.name)
                for field in grouped.schema.fields
            )
        )
    )


def _nothing(kind: T.DataType) -> Column:
    return F.lit(0 if isinstance(kind, T.IntegralType) else None)


def _exact(rows: DataFrame, name: str) -> Iterator[Column]:
    """Yield a column; of integers that may be null, numbers and where there is none (`_NULL`)."""
    field = rows.schema[name]
    if not (field.nullable and isinstance(field.dataType, T.IntegralType)):
        yield F.col(name)
        return
    yield F.coalesce(name, F.lit(0)).cast(field.dataType).alias(name)
    yield F.col(name).isNull().cast("tinyint").alias(_NULL + name)


def _with_nulls(given: pd.DataFrame) -> pd.DataFrame:
    """Put the nulls of well-formed rows back into integers, as pandas' nullable ones."""
    for flag in [name for name in given.columns if name.startswith(_NULL)]:
        is_null = given.pop(flag).to_numpy(bool)
        # Malformed rows are not folded: zero does for them.
        if is_null.any() and (is_null := is_null & given["reason"].isna().to_numpy()).any():
            name = flag.removeprefix(_NULL)
            given[name] = given[name].astype("Int64").mask(is_null)
    return given


def _raw(rows: pd.DataFrame, payload: pa.Table | pd.DataFrame) -> pd.DataFrame:
    # Taking nothing from a table of many chunks would copy all of them.
    found = payload.take(rows[_PAYLOAD_ROW].to_numpy(np.int64)) if len(rows) else payload[:0]
    frame = found.to_pandas() if isinstance(found, pa.Table) else found
    named = frame.set_axis(rows.index).rename(columns=lambda name: name.removeprefix("record"))
    return named.assign(
        _topic=rows["record_topic"], _partition=rows["partition"], _offset=rows["offset"]
    )
