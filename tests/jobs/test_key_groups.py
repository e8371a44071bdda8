"""Rows that are packed by group for the way to a fold, and taken out again. No Spark."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from headrace_jobs.transforms.key_groups import _pack, _unpacked


def readings(rng, count):
    """Rows as Spark hands them over, with nulls in texts and bytes."""
    return pa.RecordBatch.from_pydict(
        {
            "key_group": pa.array(rng.integers(0, 16, count), pa.int32()),
            "hostname": pa.array(
                [None if at % 7 == 0 else f"h-{at}" for at in range(count)], pa.string()
            ),
            "usage": pa.array(rng.random(count)),
            "offset": pa.array(np.arange(count), pa.int64()),
            "record_value": pa.array(
                [None if at % 5 == 0 else b"\xff%d" % at for at in range(count)], pa.binary()
            ),
        }
    )


@pytest.mark.parametrize("counts", [(1,), (0, 3), (500, 1, 200)])
def test_each_group_gets_its_rows_whole_and_in_their_order(counts):
    rng = np.random.default_rng(20261124)
    batches = [readings(rng, count) for count in counts]
    packed = pd.concat(each.to_pandas() for each in _pack(iter(batches)))
    expected = pa.Table.from_batches(batches).to_pandas()
    assert set(packed["key_group"]) == set(expected["key_group"])
    for group, rows in packed.groupby("key_group"):
        # As it comes: in several frames of one group.
        frames = iter([rows.iloc[:1], rows.iloc[1:]])
        own = expected[expected["key_group"] == group].reset_index(drop=True)
        pd.testing.assert_frame_equal(_unpacked(frames), own)


def test_rows_that_are_not_packed_stay_as_they_are():
    frame = readings(np.random.default_rng(1), 10).to_pandas()
    pd.testing.assert_frame_equal(_unpacked(iter([frame[:4], frame[4:]])), frame)
