"""Rows that are packed by group for the way to a fold, and taken out again. No Spark."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from headrace_jobs.transforms.key_groups import _pack, _raw, _unpacked


def readings(rng, count):
    """Rows as Spark hands them over, with nulls in texts and bytes."""
    return pa.RecordBatch.from_pydict(
        {
            "key_group": pa.array(rng.integers(0, 16, count), pa.int32()),
            "hostname": pa.array(
                [None if at % 7 == 0 else f"h-{at}" for at in range(count)], pa.string()
            ),
            "usage": pa.array(rng.random(count)),
            "partition": pa.array(np.zeros(count), pa.int32()),
            "offset": pa.array(np.arange(count), pa.int64()),
            "record_topic": pa.array(["in"] * count, pa.string()),
            "record_key": pa.array([b"%d" % (at % 3) for at in range(count)], pa.binary()),
            "record_value": pa.array(
                [None if at % 5 == 0 else b"\xff%d" % at for at in range(count)], pa.binary()
            ),
            "record_headers": pa.nulls(count, pa.string()),
        }
    )


NOW_MS = 1_769_860_800_000
PAYLOAD = ["record_key", "record_value", "record_headers"]


def assert_holds(given, payload, expected):
    """What is folded has no payload, and whoever is rejected gets his own."""
    plain = expected.drop(columns=PAYLOAD)
    pd.testing.assert_frame_equal(given.drop(columns="payload_row"), plain)
    # As a fold sorts and picks them.
    picked = given.iloc[::-2].reset_index(drop=True)
    raw = _raw(picked, payload)
    want = expected.iloc[::-2].reset_index(drop=True)
    names = ["record_topic", *PAYLOAD]
    for name in names:
        theirs = want[name]
        pd.testing.assert_series_equal(
            raw[name.removeprefix("record")], theirs, check_names=False, check_dtype=False
        )
    assert list(raw["_offset"]) == list(want["offset"])
    assert list(_raw(picked[:0], payload).columns) == list(raw.columns)


@pytest.mark.parametrize("counts", [(1,), (0, 3), (500, 1, 200)])
def test_each_group_gets_its_rows_whole_and_in_their_order(counts):
    rng = np.random.default_rng(20261124)
    batches = [readings(rng, count) for count in counts]
    packed = pd.concat(each.to_pandas() for each in _pack(iter(batches)))
    expected = pa.Table.from_batches(batches).to_pandas()
    assert set(packed["key_group"]) == set(expected["key_group"])
    for group, rows in packed.groupby("key_group"):
        # As it comes: in several frames of one group.
        timed = rows.assign(now_ms=NOW_MS)
        frames = iter([timed.iloc[:1], timed.iloc[1:]])
        own = expected[expected["key_group"] == group].reset_index(drop=True)
        given, payload, now_ms = _unpacked(frames)
        assert_holds(given, payload, own)
        assert now_ms == NOW_MS


def test_rows_that_are_not_packed_stay_as_they_are():
    frame = readings(np.random.default_rng(1), 10).to_pandas()
    timed = frame.assign(now_ms=NOW_MS)
    given, payload, now_ms = _unpacked(iter([timed[:4], timed[4:]]))
    assert_holds(given, payload, frame)
    assert now_ms == NOW_MS
