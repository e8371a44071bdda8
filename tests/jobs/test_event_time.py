"""Windows of a job of one's own: rows that cannot be aggregated are set aside, live and past."""

import base64
import json

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

from headrace_jobs.transforms import tagged
from headrace_jobs.transforms.event_time import event_time_windows
from headrace_jobs.transforms.window_fold import WindowSpec

pytestmark = pytest.mark.spark

SCHEMA = "topic STRING, partition INT, offset LONG, key BINARY, value BINARY, n LONG, x DOUBLE"
ROWS = [
    (b"a", 5, 1.5),
    (b"a", 7, 2.5),
    (b"a", None, 1.0),
    (b"a", 1, None),
    (b"b\xff", 1, 1.0),
    (None, 3, 1.0),
    (b"null", 4, 1.0),
    (b"", 4, 1.0),
    (b"a", 1, float("nan")),
]


def windows(records):
    spec = WindowSpec(
        keys=("name",),
        aggregates={"low": ("n", "min"), "total": ("x", "sum"), "rows": ("n", "count")},
        window_us=10_000_000,
        slide_us=10_000_000,
        lateness_us=0,
        is_update=True,
    )
    rows = records.withColumns(
        {
            "name": F.col("key").cast("string"),
            "x": F.when(F.col("offset") == len(ROWS) - 1, F.lit(float("nan"))).otherwise(
                F.col("x")
            ),
            "event_time": F.timestamp_seconds(F.lit(1_000_000_000)),
            "reason": F.lit(None).cast("string"),
        }
    )
    return event_time_windows(rows, spec)


def plain(frame):
    return sorted((str(row.name), row.low, row.total, row.rows) for row in frame.collect())


def test_rows_without_a_number_or_with_a_key_that_is_no_text_are_malformed(spark, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    lines = [
        {
            "topic": "t",
            "partition": 0,
            "offset": offset,
            "key": None if key is None else base64.b64encode(key).decode(),
            "n": n,
            "x": None if x != x else x,  # noqa: PLR0124 - NaN, which JSON has not
        }
        for offset, (key, n, x) in enumerate(ROWS)
    ]
    (folder / "0.json").write_text("\n".join(map(json.dumps, lines)))
    expected = [("", 4, 1.0, 1), ("None", 3, 1.0, 1), ("a", 5, 4.0, 2), ("null", 4, 1.0, 1)]
    assert plain(windows(spark.read.schema(SCHEMA).json(str(folder)))) == expected
    found, letters = [], []

    def take(batch, _):
        batch.persist()
        found.extend(plain(tagged.results(batch)))
        letters.extend((row.offset, row.reason) for row in tagged.rejected(batch).collect())
        batch.unpersist()

    query = (
        windows(spark.readStream.schema(SCHEMA).json(str(folder)))
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(take)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(found) == expected
    assert sorted(letters) == [
        (2, "n is no number"),
        (3, "x is no number"),
        (4, "name is not UTF-8"),
        (8, "x is no number"),
    ]
