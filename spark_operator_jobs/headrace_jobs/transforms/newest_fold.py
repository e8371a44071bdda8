"""The newest value of each key by event time: one step of the fold.

Owns which event of a key wins, over columns in memory: the one with the newest event time, then the
higher offset, then the higher partition. That is a total order of a key's events, so any order of
arrival, any batch boundaries and any repetition give the same table. Knows no Spark, no clock and
no IO. Times are microseconds since 1970 in UTC.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from headrace_jobs.transforms.names import refuse_names
from headrace_jobs.transforms.window_fold import (
    FUTURE_US,
    observed_ms,
    tables_from_bytes,
    tables_to_bytes,
    with_integers,
)

__all__ = ["NewestSpec", "NewestStep", "fold_newest"]

# Columns of the results, and of the state.
_TAKEN = frozenset(("event_time", "seen_ms", "at_ms", "is_new"))
_RANK = ["event_us", "offset", "partition"]


@dataclass(frozen=True, kw_only=True)
class NewestSpec:
    """The columns of key and value, and how long a silent key is kept.

    After `ttl_ms` without any event a key expires: a result without a value reports that, and after
    that an event that is older than the expired one wins again. Only time in which the job runs
    counts (`observed_ms`). Choose more than events can be late. `future_us`: as in `WindowSpec`; a
    clock that runs ahead would keep out what comes after it.
    """

    keys: tuple[str, ...]
    value_columns: tuple[str, ...]
    ttl_ms: int
    future_us: int | None = FUTURE_US

    def __post_init__(self) -> None:
        """Refuse a table that would keep nothing. Raises `ValueError`."""
        if self.ttl_ms <= 0:
            raise ValueError("ttl_ms: longer than nothing, or each key expires as it comes")
        values = self.value_columns
        refuse_names(keys=self.keys, given=values, results=values, taken=_TAKEN)


@dataclass(frozen=True, kw_only=True)
class NewestStep:
    """The result of one step: the state's bytes, and the newest event of each key that changed.

    The value of a key that expired is None: a tombstone, in a compacted topic.
    """

    state: bytes
    results: pd.DataFrame
    late: pd.DataFrame
    partitions: pd.DataFrame
    open_rows: int


def fold_newest(
    state: bytes | None, rows: pd.DataFrame, *, spec: NewestSpec, now_ms: int
) -> NewestStep:
    """Take a group's rows: the key's and the value's columns, `partition, offset, event_us`."""
    columns = [*spec.keys, *spec.value_columns, *_RANK]
    given = rows[columns].assign(seen_ms=np.int64(now_ms), is_new=True)
    given = given.assign(at_ms=np.int64(now_ms))
    every = given
    if state is not None:
        known = _until(with_integers(tables_from_bytes(state)[0], rows[columns]), now_ms)
        every = pd.concat([known.assign(is_new=False), given], ignore_index=True)
    every = every.sort_values(_RANK, kind="stable").reset_index(drop=True)
    by_key = every.groupby(list(spec.keys), sort=False, dropna=False)
    # An old event keeps its key alive as well.
    every["seen_ms"] = by_key["seen_ms"].transform("max")
    # If the same record comes twice (a batch that runs again), the known one stays: no change.
    newest = every.sort_values([*_RANK, "is_new"], ascending=[True, True, True, False])
    newest = newest.drop_duplicates(list(spec.keys), keep="last")
    is_kept = newest["seen_ms"] > now_ms - spec.ttl_ms
    kept = newest[is_kept].drop(columns="is_new")
    forgotten = newest[~is_kept].assign(**dict.fromkeys(spec.value_columns))
    results = newest[is_kept & newest["is_new"]]
    if len(forgotten):
        results = pd.concat([results, forgotten])
    return NewestStep(
        state=tables_to_bytes(kept),
        results=results[columns].reset_index(drop=True),
        late=rows.iloc[:0].assign(watermark_us=np.int64(0)),
        partitions=_partitions(rows),
        open_rows=len(kept),
    )


def _until(known: pd.DataFrame, now_ms: int) -> pd.DataFrame:
    """Let time pass since the batch before: what the job did not observe moves `seen_ms` on."""
    if known.empty:
        return known
    # A program that did not keep the batch's time had its keys' times.
    at_ms = int(known["at_ms" if "at_ms" in known else "seen_ms"].max())
    unobserved_ms = max(now_ms - at_ms, 0) - observed_ms(at_ms, now_ms)
    seen_ms = known["seen_ms"].to_numpy(np.int64) + unobserved_ms
    return known.assign(seen_ms=seen_ms, at_ms=np.int64(now_ms))


def _partitions(rows: pd.DataFrame) -> pd.DataFrame:
    by_partition = rows.groupby("partition")["event_us"].agg(["size", "max"]).reset_index()
    named = by_partition.rename(columns={"size": "counted", "max": "watermark_us"})
    return named.assign(late=0)
