"""Windows of a job of one's own: rows that cannot be aggregated are set aside, live and past."""

import base64
import json
from types import SimpleNamespace

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use
from pyspark.sql import types as T  # noqa: N812 - the same

from headrace_jobs.transforms import tagged
from headrace_jobs.transforms.event_time import event_time_windows
from headrace_jobs.transforms.window_fold import WindowSpec

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


@pytest.mark.spark
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


@pytest.mark.parametrize(
    ("column", "how", "reason"),
    [
        (
            "is_on",
            "sum",
            r"on: a sum of is_on, which is BOOLEAN.*cast\('int'\).*counts where it is",
        ),
        ("name", "sum", "on: a sum of name, which is STRING: cast it to a number"),
        ("at", "sum", "on: a sum of at, which is TIMESTAMP: cast it to a number"),
        ("tags", "max", "on: a max of tags, which is ARRAY<STRING> and has no order"),
        ("nested", "min", "on: a min of nested, which is STRUCT<A:INT> and has no order"),
    ],
)
def test_an_aggregate_that_a_type_does_not_have_is_refused_before_a_record_is_read(
    column, how, reason
):
    """Live a sum of booleans was taken; of the past, as a replay of late records, it failed."""
    schema = (
        T.StructType()
        .add("name", T.StringType())
        .add("is_on", T.BooleanType())
        .add("at", T.TimestampType())
        .add("tags", T.ArrayType(T.StringType()))
        .add("nested", T.StructType().add("a", T.IntegerType()))
    )
    spec = WindowSpec(
        keys=("name",),
        aggregates={"rows": ("is_on", "count"), "most": ("is_on", "max"), "on": (column, how)},
        window_us=10_000_000,
        slide_us=10_000_000,
        lateness_us=0,
    )
    with pytest.raises(ValueError, match=reason):
        event_time_windows(SimpleNamespace(schema=schema, isStreaming=True), spec)
