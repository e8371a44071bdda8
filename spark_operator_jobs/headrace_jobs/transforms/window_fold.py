"""Event-time windows with a watermark for each key and source partition: one step of the fold.

Owns which rows count, which are late and when a window is complete, over columns in memory. Knows
no Spark, no clock and no IO: `event_time.py` passes it a group's rows of one micro-batch and keeps
its state. Rows are judged in offset order, each against earlier rows with the same key in the same
partition. So what is late depends on the log alone, and never on batch boundaries, on how fast
another partition was read, or on another key's clock (docs/decisions, event time).

Times are microseconds since 1970 in UTC, `now_ms` milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import localcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from headrace_jobs.transforms.names import refuse_names

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "FUTURE_US",
    "NEVER_MS",
    "NEVER_US",
    "FoldState",
    "Step",
    "WindowSpec",
    "fold",
    "observed_ms",
    "tables_from_bytes",
    "tables_to_bytes",
    "with_integers",
]

# Columns of the results, and of the state.
_TAKEN = frozenset(
    (
        *("start_us", "end_us", "revision", "window_start", "window_end"),
        *("key_id", "is_changed", "horizon_us", "silent_ms", "at_ms"),
    )
)
_AGGREGATES = ("sum", "min", "max", "count")
_REDUCE = {"min": np.minimum, "max": np.maximum}
#: Before every event time, and far enough from the smallest integer to allow subtraction.
NEVER_US = -(2**62)
_NO_TIME_US = 2**62
#: One clock that runs ahead further than this is no reason to call others late.
FUTURE_US = 3_600_000_000
_PARTITIONS = 2**31  # of a topic, at most
_LONG_MAX = 2**63 - 1
_DECIMAL_DIGITS = 76
NEVER_MS = -1
#: Much less than any retention, and more than the time between batches of a busy topic.
STEP_MS_MAX = 120_000


@dataclass(frozen=True, kw_only=True)
class WindowSpec:
    """What to aggregate by which keys, and how long to wait.

    `aggregates`: name of the result → column and `sum`, `min`, `max` or `count`; over integers they
    do not depend on the order. Sums have Spark's types: LONG, DOUBLE, DECIMAL of ten more digits; a
    sum that is greater fails its batch. `future_us`: an event time further than this after the
    record's own `timestamp` is malformed (None: none is). `jump_us`: an event time further ahead
    than this of all others of its key moves the key's watermark only when a second one confirms it.
    `idle_ms`: after this long without a row, a key's open windows are written as they are; they
    stay open, and are written again if more rows come. `retention_ms`: a key that is silent for
    this long is dropped. Only time in which the job runs counts (`observed_ms`).
    """

    keys: tuple[str, ...]
    aggregates: Mapping[str, tuple[str, str]]
    window_us: int
    slide_us: int
    lateness_us: int
    idle_ms: int = 60_000
    retention_ms: int = 7 * 86_400_000
    jump_us: int = 60_000_000
    future_us: int | None = FUTURE_US
    is_update: bool = False

    def __post_init__(self) -> None:
        """Refuse windows that no rows could be in, or not all. Raises `ValueError`."""
        if not 0 < self.slide_us <= self.window_us:
            raise ValueError("slide_us: from 1 to window_us, or rows between windows are in none")
        if self.lateness_us < 0 or self.idle_ms <= 0 or self.retention_ms <= 0:
            raise ValueError("lateness_us is 0 or more; idle_ms and retention_ms are more than 0")
        for name, (_, how) in self.aggregates.items():
            if how not in _AGGREGATES:
                raise ValueError(f"{name}: {how!r} is none of {', '.join(_AGGREGATES)}")
        given = [column for column, how in self.aggregates.values() if how != "count"]
        refuse_names(keys=self.keys, given=given, results=[*self.aggregates], taken=_TAKEN)


@dataclass(frozen=True, kw_only=True)
class FoldState:
    """A group's state between batches. Ids are positions in `keys`.

    `keys`: the key's columns, `horizon_us`, up to which its windows are closed, `silent_ms`, the
    time without a row that the job observed, and `at_ms`, the time of the group's last batch.
    `clocks`: `key_id, topic, partition, newest_us, second_us, seen_ms`; a topic that no row named
    is an empty text.
    `windows`: `key_id, start_us, is_changed, revision` and the aggregates; `revision` counts how
    often it was written.
    """

    keys: pd.DataFrame
    clocks: pd.DataFrame
    windows: pd.DataFrame

    def to_bytes(self) -> bytes:
        """Return the three tables as Arrow IPC streams, one after the other."""
        return tables_to_bytes(self.keys, self.clocks, self.windows)

    @classmethod
    def from_bytes(cls, data: bytes) -> FoldState:
        """Read what `to_bytes` returned."""
        keys, clocks, windows = tables_from_bytes(data)
        if "revision" not in windows:
            windows = windows.assign(revision=np.int64(0))  # from a program that did not count yet
        if "silent_ms" not in keys:
            keys = _with_silence(keys, clocks)
        if "topic" not in clocks:
            clocks = clocks.assign(topic="")  # from a program that took all for one topic
        return cls(keys=keys, clocks=clocks, windows=windows)


@dataclass(frozen=True, kw_only=True)
class Step:
    """The result of one step.

    `results`: the key's columns, `start_us, end_us`, the aggregates and `revision`, which is 0 when
    a window is first written, and grows with each correction. `late`: the given rows that miss a
    closed window, with `watermark_us`, which they missed, and `is_counted`: whether other windows
    that they belong to were open. `partitions`: for each source partition of the group `topic,
    partition, counted, late` (in no window), `partly_late` (not in all of them), and
    `watermark_us`, the lowest of its keys that are not idle (`NEVER_US` if none has one).
    """

    state: FoldState
    results: pd.DataFrame
    late: pd.DataFrame
    partitions: pd.DataFrame

    @property
    def open_rows(self) -> int:
        """How many windows are open."""
        return len(self.state.windows)


def fold(
    state: FoldState | None,
    rows: pd.DataFrame,
    *,
    spec: WindowSpec,
    now_ms: int,
    is_silent: bool = False,
) -> Step:
    """Take a group's rows: the key's columns, those aggregated, `partition, offset, event_us`.

    And `record_topic`, if they are of several topics. Other columns are kept in `late`. A key must
    always belong to the same group. `is_silent`: every key without a row here counts as idle.
    """
    topics, old_places, places = _places(None if state is None else state.clocks, rows)
    order = np.lexsort((rows["offset"], places))
    rows, places = rows.iloc[order].reset_index(drop=True), places[order]
    keys, key_ids = _key_ids(None if state is None else state.keys, rows, spec)
    old_clocks = None
    if state is not None:
        # A clock may be set back: nobody was seen later than before this batch.
        seen_ms = np.minimum(state.clocks["seen_ms"], now_ms - 1)
        known = state.clocks.drop(columns=["topic", "partition"])
        old_clocks = known.assign(seen_ms=seen_ms, place=old_places)
    clocks, clock_ids = _clock_ids(old_clocks, key_ids, places)
    watermarks, clocks = _advance(clocks, clock_ids, rows, spec, now_ms)
    watermarks = np.maximum(watermarks, keys["horizon_us"].to_numpy(np.int64)[key_ids])
    windows, is_counted, is_late = _count(rows, key_ids, watermarks, spec)
    if state is not None:
        windows = _merge(state.windows, windows, spec)
    is_live = clocks["seen_ms"].to_numpy() > now_ms - (1 if is_silent else spec.idle_ms)
    keys = _grow_silent(keys, key_ids, now_ms)
    keys = _advance_horizons(keys, clocks[is_live], spec)
    live = np.bincount(clocks["key_id"], weights=is_live, minlength=len(keys)) > 0
    # What is about to be forgotten is written first.
    live &= keys["silent_ms"].to_numpy(np.int64) < spec.retention_ms
    results, windows = _write(keys, windows, live, spec)
    late = rows[is_late].assign(watermark_us=watermarks[is_late], is_counted=is_counted[is_late])
    partitions = _partitions(places, is_counted, is_late, clocks[is_live], spec)
    return Step(
        state=_forget(keys, _named(clocks, topics), windows, spec.retention_ms),
        results=results,
        late=late,
        partitions=_named(partitions, topics),
    )


def _places(
    clocks: pd.DataFrame | None, rows: pd.DataFrame
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the topics, and the source partitions of clocks and rows: each topic's by number."""
    count = len(rows)
    given = rows["record_topic"].to_numpy(object) if "record_topic" in rows else [""] * count
    known = clocks["topic"].to_numpy(object) if clocks is not None else np.empty(0, object)
    if count:
        known = np.where(known == "", given[0], known)
    numbers, topics = pd.factorize(np.concatenate([known, np.asarray(given, object)]))
    partitions = [] if clocks is None else clocks["partition"].to_numpy(np.int64)
    at = numbers.astype(np.int64) * _PARTITIONS
    at += np.concatenate([partitions, rows["partition"].to_numpy(np.int64)]).astype(np.int64)
    return topics, at[: len(known)], at[len(known) :]


def _named(frame: pd.DataFrame, topics: np.ndarray[Any, Any]) -> pd.DataFrame:
    """Put a frame's `place` back into `topic` and `partition`."""
    places = frame["place"].to_numpy(np.int64)
    return frame.drop(columns="place").assign(
        topic=topics[places // _PARTITIONS], partition=places % _PARTITIONS
    )


def _key_ids(
    known: pd.DataFrame | None, rows: pd.DataFrame, spec: WindowSpec
) -> tuple[pd.DataFrame, np.ndarray[Any, Any]]:
    """Return all keys, the known ones first, and each row's position among them."""
    given = rows[list(spec.keys)]
    given = given.assign(
        horizon_us=np.int64(NEVER_US), silent_ms=np.int64(0), at_ms=np.int64(NEVER_MS)
    )
    if known is not None:
        known = with_integers(known, given)
    every = given if known is None else pd.concat([known, given], ignore_index=True)
    ids = every.groupby(list(spec.keys), sort=False, dropna=False).ngroup().to_numpy()
    _, first = np.unique(ids, return_index=True)
    return every.iloc[first].reset_index(drop=True), ids[len(every) - len(rows) :]


def _clock_ids(
    known: pd.DataFrame | None, key_ids: np.ndarray[Any, Any], places: np.ndarray[Any, Any]
) -> tuple[pd.DataFrame, np.ndarray[Any, Any]]:
    """Return the clocks of all pairs of key and partition, and each row's position among them."""
    given = pd.DataFrame(
        {
            "key_id": key_ids.astype(np.int64),
            "place": places,
            "newest_us": np.int64(NEVER_US),
            "second_us": np.int64(NEVER_US),
            "seen_ms": np.int64(0),
        }
    )
    every = given if known is None else pd.concat([known, given], ignore_index=True)
    ids = every.groupby(["key_id", "place"], sort=False).ngroup().to_numpy()
    _, first = np.unique(ids, return_index=True)
    return every.iloc[first].reset_index(drop=True), ids[len(every) - len(given) :]


def _advance(
    clocks: pd.DataFrame,
    ids: np.ndarray[Any, Any],
    rows: pd.DataFrame,
    spec: WindowSpec,
    now_ms: int,
) -> tuple[np.ndarray[Any, Any], pd.DataFrame]:
    """Return the watermark for each row, and the clocks after all rows."""
    times = rows["event_us"].to_numpy(np.int64)
    newest, second = (clocks[name].to_numpy(np.int64)[ids] for name in ("newest_us", "second_us"))
    running = np.maximum(newest, _running_max(times, ids))
    before = np.maximum(newest, _shifted(running, ids))
    # The second newest of a prefix: each new time is either it, or makes the former newest it.
    running_second = np.maximum(second, _running_max(np.minimum(times, before), ids))
    watermarks = _confirmed(running, running_second, spec) - spec.lateness_us
    after = clocks.copy()
    now = {"newest_us": running, "second_us": running_second, "seen_ms": np.int64(now_ms)}
    for name, values in now.items():
        # None of them ever falls: the last one of a clock is the largest.
        column = after[name].to_numpy(np.int64).copy()
        np.maximum.at(column, ids, values)
        after[name] = column
    return watermarks, after


def _running_max(
    values: np.ndarray[Any, Any], groups: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = pd.Series(values).groupby(groups).cummax().to_numpy(np.int64)
    return found


def _shifted(values: np.ndarray[Any, Any], groups: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the value of the previous row in its group."""
    shifted = pd.Series(values).groupby(groups).shift(1, fill_value=NEVER_US)
    found: np.ndarray[Any, Any] = shifted.to_numpy(np.int64)
    return found


def _confirmed(
    newest: np.ndarray[Any, Any], second: np.ndarray[Any, Any], spec: WindowSpec
) -> np.ndarray[Any, Any]:
    """Return a clock's time: its newest time, unless that one alone is far ahead."""
    return np.where(newest - second <= spec.jump_us, newest, second)


def _count(
    rows: pd.DataFrame,
    key_ids: np.ndarray[Any, Any],
    watermarks: np.ndarray[Any, Any],
    spec: WindowSpec,
) -> tuple[pd.DataFrame, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Aggregate rows into their open windows; also return which had one, and which a closed one."""
    times = rows["event_us"].to_numpy(np.int64)
    newest_start = times - times % spec.slide_us
    is_counted, is_late = np.zeros(len(rows), dtype=bool), np.zeros(len(rows), dtype=bool)
    parts = []
    for back_us in range(0, spec.window_us, spec.slide_us):
        starts = newest_start - back_us
        ends = starts + spec.window_us
        is_its, is_ahead = ends > times, ends > watermarks
        is_open = is_its & is_ahead
        is_counted |= is_open
        is_late |= is_its & ~is_ahead
        columns = {
            name: np.ones(int(is_open.sum()), dtype=np.int64)
            if how == "count"
            else rows[column].to_numpy()[is_open]
            for name, (column, how) in spec.aggregates.items()
        }
        parts.append(
            pd.DataFrame({"key_id": key_ids[is_open], "start_us": starts[is_open]} | columns)
        )
    found = pd.concat(parts, ignore_index=True)
    new = found.assign(is_changed=True, revision=np.int64(0))
    return _aggregate(new, spec), is_counted, is_late


def _aggregate(parts: pd.DataFrame, spec: WindowSpec) -> pd.DataFrame:
    """Make one row of all with the same key and start, in the order of their first rows."""
    ids, starts = (parts[name].to_numpy(np.int64) for name in ("key_id", "start_us"))
    order = np.lexsort((starts, ids))
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = (np.diff(ids[order]) != 0) | (np.diff(starts[order]) != 0)
    begins = np.flatnonzero(is_first)
    # The sort is stable: the first of a run is its first row.
    back = np.argsort(order[begins])
    at = order[begins][back]
    found = {"key_id": ids[at], "start_us": starts[at]}
    for name, how in _how(spec).items():
        values = parts[name].to_numpy()[order]
        if how == "sum":
            found[name] = _sums(values, begins, name)[back] if len(begins) else values
        else:
            found[name] = _REDUCE[how].reduceat(values, begins)[back] if len(begins) else values
    return pd.DataFrame(found)


def _sums(
    values: np.ndarray[Any, Any], begins: np.ndarray[Any, Any], name: str
) -> np.ndarray[Any, Any]:
    """Add up runs, in the type that Spark has for it. Raises `OverflowError`."""
    found: np.ndarray[Any, Any]
    if values.dtype.kind == "f":
        found = np.add.reduceat(values.astype(np.float64, copy=False), begins)
    elif values.dtype.kind == "i":
        values = values.astype(np.int64, copy=False)
        found = np.add.reduceat(values, begins)
        highest = max(int(values.max()), -int(values.min()))
        if highest * len(values) > _LONG_MAX:
            exact = np.add.reduceat(values.astype(object), begins)
            if (exact != found).any():
                raise OverflowError(
                    f"the sum {name} of a window is beyond 64 bits. Give rows whose value is too"
                    " large a `reason`: they are malformed then"
                )
    else:
        # Of decimals; Python's own 28 digits would round them.
        with localcontext(prec=_DECIMAL_DIGITS):
            found = np.add.reduceat(values, begins)
    return found


def _how(spec: WindowSpec) -> dict[str, str]:
    aggregates = {
        name: "sum" if how == "count" else how for name, (_, how) in spec.aggregates.items()
    }
    return {"is_changed": "max", "revision": "max", **aggregates}


def _merge(known: pd.DataFrame, new: pd.DataFrame, spec: WindowSpec) -> pd.DataFrame:
    if known.empty or new.empty:
        return new if known.empty else known
    return _aggregate(pd.concat([known, new], ignore_index=True), spec)


def _advance_horizons(keys: pd.DataFrame, live: pd.DataFrame, spec: WindowSpec) -> pd.DataFrame:
    """Close windows up to each key's slowest partition that is not idle."""
    times = _confirmed(
        live["newest_us"].to_numpy(np.int64), live["second_us"].to_numpy(np.int64), spec
    )
    ids = live["key_id"].to_numpy(np.int64)
    slowest = np.full(len(keys), _NO_TIME_US)
    np.minimum.at(slowest, ids, times - spec.lateness_us)
    slowest[slowest == _NO_TIME_US] = NEVER_US
    horizons = np.maximum(keys["horizon_us"].to_numpy(np.int64), slowest)
    return keys.assign(horizon_us=horizons)


def _write(
    keys: pd.DataFrame, windows: pd.DataFrame, live: np.ndarray[Any, Any], spec: WindowSpec
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the windows to write, and those that stay."""
    ids = windows["key_id"].to_numpy(np.int64)
    ends = windows["start_us"].to_numpy(np.int64) + spec.window_us
    is_closed = ends <= keys["horizon_us"].to_numpy(np.int64)[ids]
    is_due = is_closed | ~live[ids] | spec.is_update
    is_written = is_due & windows["is_changed"].to_numpy(bool)
    found = keys[list(spec.keys)].iloc[ids[is_written]].reset_index(drop=True)
    written = windows[is_written]
    results = found.assign(
        start_us=written["start_us"].to_numpy(np.int64),
        end_us=ends[is_written],
        **{name: written[name].to_numpy() for name in (*spec.aggregates, "revision")},
    )
    kept = windows.assign(
        is_changed=windows["is_changed"].to_numpy(bool) & ~is_written,
        revision=windows["revision"].to_numpy(np.int64) + is_written,
    )
    return results, kept[~is_closed].reset_index(drop=True)


def observed_ms(since_ms: int, now_ms: int) -> int:
    """Return how much of the time between two batches counts as time in which the job ran.

    At most `STEP_MS_MAX`: a job that was down for a week has observed no week of silence. What came
    meanwhile is read batch by batch, and the first one has few of the keys.
    """
    return min(max(now_ms - since_ms, 0), STEP_MS_MAX)


def _grow_silent(keys: pd.DataFrame, key_ids: np.ndarray[Any, Any], now_ms: int) -> pd.DataFrame:
    """Let time pass since the batch before, for keys without a row."""
    at_ms = int(keys["at_ms"].max()) if len(keys) else NEVER_MS
    passed_ms = observed_ms(at_ms, now_ms) if at_ms > NEVER_MS else 0
    silent_ms = keys["silent_ms"].to_numpy(np.int64) + passed_ms
    silent_ms[key_ids] = 0
    return keys.assign(silent_ms=silent_ms, at_ms=np.int64(now_ms))


def _with_silence(keys: pd.DataFrame, clocks: pd.DataFrame) -> pd.DataFrame:
    """Add what a program that kept no silence knew: when each key was last seen."""
    seen = np.zeros(len(keys), dtype=np.int64)
    np.maximum.at(seen, clocks["key_id"].to_numpy(np.int64), clocks["seen_ms"].to_numpy(np.int64))
    at_ms = seen.max(initial=NEVER_MS)
    return keys.assign(silent_ms=at_ms - seen, at_ms=at_ms)


def _forget(
    keys: pd.DataFrame, clocks: pd.DataFrame, windows: pd.DataFrame, retention_ms: int
) -> FoldState:
    """Drop keys that were silent for longer."""
    is_kept = keys["silent_ms"].to_numpy(np.int64) < retention_ms
    if not is_kept.all():
        ids = np.cumsum(is_kept) - 1
        clocks, windows = (
            each[is_kept[each["key_id"]]].assign(
                key_id=lambda kept: ids[kept["key_id"]].astype(np.int64)
            )
            for each in (clocks, windows)
        )
        keys = keys[is_kept]
    return FoldState(
        keys=keys.reset_index(drop=True),
        clocks=clocks.reset_index(drop=True),
        windows=windows.reset_index(drop=True),
    )


def _partitions(
    given: np.ndarray[Any, Any],
    is_counted: np.ndarray[Any, Any],
    is_late: np.ndarray[Any, Any],
    live: pd.DataFrame,
    spec: WindowSpec,
) -> pd.DataFrame:
    times = _confirmed(
        live["newest_us"].to_numpy(np.int64), live["second_us"].to_numpy(np.int64), spec
    )
    marks = np.where(times > NEVER_US, times - spec.lateness_us, NEVER_US)
    numbers, at = np.unique(
        np.concatenate([given, live["place"].to_numpy(np.int64)]), return_inverse=True
    )
    lowest = np.full(len(numbers), _NO_TIME_US)
    np.minimum.at(lowest, at[len(given) :], marks)
    counted, late, partly_late = (
        np.bincount(at[: len(given)][chosen], minlength=len(numbers))
        for chosen in (is_counted, ~is_counted, is_counted & is_late)
    )
    return pd.DataFrame(
        {
            "place": numbers,
            "counted": counted,
            "late": late,
            "partly_late": partly_late,
            "watermark_us": np.where(lowest < _NO_TIME_US, lowest, NEVER_US),
        }
    )


def with_integers(known: pd.DataFrame, given: pd.DataFrame) -> pd.DataFrame:
    """Return a state's frame with integers where an earlier program made them floats."""
    floats = [
        name
        for name in given.columns
        if known[name].dtype.kind == "f" and given[name].dtype.kind in "iu"
    ]
    return known.astype(dict.fromkeys(floats, "Int64"))


def tables_to_bytes(*frames: pd.DataFrame) -> bytes:
    """Return tables as Arrow IPC streams, one after the other."""
    sink = pa.BufferOutputStream()
    for frame in frames:
        table = pa.Table.from_pandas(frame, preserve_index=False)
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def tables_from_bytes(data: bytes) -> list[pd.DataFrame]:
    """Read what `tables_to_bytes` returned."""
    source, frames = pa.BufferReader(data), []
    while source.tell() < len(data):
        frames.append(pa.ipc.open_stream(source).read_all().to_pandas())
    return frames
