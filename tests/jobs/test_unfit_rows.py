"""Rows that a sink can never take: the batch is written without them, and they are kept beside."""

import datetime as dt
import json
import random
import string
import uuid

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

from headrace_jobs.delivery import Delivery
from headrace_jobs.jobs.outputs import Outputs
from headrace_jobs.progress.metrics import JobMetrics
from headrace_jobs.progress.stored import Batch
from headrace_jobs.schemas.frames import Json, decode, set_aside
from headrace_jobs.sinks.files import FileTable
from headrace_jobs.sinks.kafka import as_json_records
from headrace_jobs.sinks.only import Only
from headrace_jobs.sinks.postgres import PostgresTable
from headrace_jobs.sinks.postgres_rows import unfit_values
from headrace_jobs.sinks.protocol import Run
from headrace_jobs.sinks.search_task import document_id, unfit_version

pytestmark = pytest.mark.spark


class Letters:
    """A dead-letter topic in memory."""

    def __init__(self):
        self.rows = []

    def write(self, rejected, *_):
        self.rows += rejected.collect()


def write(sink, frame):
    """Write a first batch; returns what became dead letters, as (offset, reason, value)."""
    run = Run(job="j", generation=1, delivery=Delivery.EXACTLY_ONCE, bootstrap_servers="")
    letters, writer = Letters(), sink.open(run)
    outputs = Outputs(writers=[writer], delivery=run.delivery, driver=None)
    outputs.dead_letters, outputs.metrics = (
        letters,
        JobMetrics(run.job, "query", trigger_interval_seconds=1),
    )
    outputs._batch = lambda batch_id: Batch(batch_id=batch_id)
    outputs.write(frame, 0)
    writer.close()
    return [(row.offset, row.reason, row.value and bytes(row.value)) for row in letters.rows]


def records(spark, *values):
    rows = [("in", 0, offset, b"k", value) for offset, value in enumerate(values)]
    schema = "topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY"
    return spark.createDataFrame(rows, schema)


@pytest.mark.parametrize("is_part", [False, True])
def test_rows_that_postgres_cannot_hold_become_dead_letters(spark, postgres, is_part):
    table = f"t_{uuid.uuid4().hex[:8]}"
    sink = PostgresTable(table=table, key=("k",), dsn=postgres.dsn)
    columns = ("k", "name", "tags", "at")
    values = [
        {"k": "good", "name": "a\\u0000", "tags": ["\\u0000"], "at": "2026-01-31T12:00:00Z"},
        {"k": "nul", "name": "a\0"},
        {"k": "nested", "tags": ["x", "\\\0"]},
        {"k": None, "name": "no key"},
        {"k": "far", "at": "+12026-01-31T12:00:00Z"},
        {"k": "".join(random.Random(1).choices(string.ascii_letters, k=3_000))},
    ]
    codec = Json(columns="k STRING, name STRING, tags ARRAY<STRING>, at TIMESTAMP")
    decoded = decode(records(spark, *(json.dumps(each).encode() for each in values), b"x"), codec)
    frame = set_aside(decoded, *(F.col(f"decoded.{name}") for name in columns))
    part = Only(rows="k IS NULL OR k <> 'other'", columns=columns, sink=sink)
    found = write(part if is_part else sink, frame)
    assert postgres.query(f"SELECT k, name FROM {table}") == [("good", "a\\u0000")]  # noqa: S608 - a test's own name
    assert [(offset, reason) for offset, reason, _ in found] == [
        (6, "it is no JSON of these columns"),
        (1, "name has U+0000, which PostgreSQL does not take"),
        (2, "tags has U+0000, which PostgreSQL does not take"),
        (3, "k is null"),
        (4, "at is not of the years 1 to 9999"),
        (5, "its key has more than 2600 bytes, and PostgreSQL indexes no such one"),
    ]
    assert json.loads(found[1][2]) == {"k": "nul", "name": "a\0"}


def not_utf8(spark):
    """A frame of a job that sets nothing aside itself."""
    raw = spark.createDataFrame([(b"a", 1), (b"b\xff", 2)], "k BINARY, v INT")
    return raw.select(F.col("k").cast("string").alias("k"), "v")


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_text_that_is_not_utf8_is_in_no_file(spark, tmp_path, form):
    sink = FileTable(path=str(tmp_path / "t"), form=form)
    ((offset, reason, _),) = write(sink, not_utf8(spark))
    assert (offset, reason) == (None, "k is not UTF-8")
    if form == "delta":
        assert DeltaTable(sink.path).to_pyarrow_table().to_pylist() == [{"k": "a", "v": 1}]


def test_what_postgres_takes_has_no_reason(spark):
    at = dt.datetime(9999, 12, 31)  # noqa: DTZ001 - as Spark takes it, in UTC
    row = ("\\u0000 \ud7ff\U0010ffff", ["\\u0000"], at, b"\0", None)
    schema = "text STRING, tags ARRAY<STRING>, at TIMESTAMP, raw BINARY, nothing STRING"
    frame = spark.createDataFrame([row], schema)
    (found,) = frame.select(F.coalesce(*unfit_values(frame))).collect()
    assert found[0] is None


KEYS = [None, "", "null", "[null]", '[""]', "%00", "%2500", "a", '["a"]', "%", "a/b"]


def test_no_two_keys_share_a_document_or_a_record(spark):
    one = spark.createDataFrame([(key,) for key in KEYS], "x STRING")
    two = spark.createDataFrame([(x, y) for x in KEYS for y in KEYS], "x STRING, y STRING")
    for frame in (one, two):
        ids = [row[0] for row in frame.select(document_id(frame.columns)).collect()]
        assert all(ids)
        assert len(set(ids)) == len(ids)
        keys = [row.key for row in as_json_records(frame, tuple(frame.columns)).collect()]
        assert None not in keys
        assert len(set(keys)) == len(keys)
    # What was plain stays as it was.
    plain = [row[0] for row in one.select(document_id(("x",))).collect()]
    assert plain[2] == KEYS[2]
    assert plain[5:8] == KEYS[5:8]
    assert plain[9:] == KEYS[9:]
    keys = [row.key for row in as_json_records(one, ("x",)).collect()]
    assert keys[1:5] == KEYS[1:5]


@pytest.mark.parametrize("kind", ["INT", "TIMESTAMP"])
def test_a_version_below_zero_is_none(spark, kind):
    frame = spark.createDataFrame([(-1,), (0,), (None,)], "v INT")
    if kind == "TIMESTAMP":
        frame = frame.select(F.timestamp_seconds("v").alias("v"))
    (reason,) = unfit_version(frame, "v")
    assert [row[0] is None for row in frame.select(reason).collect()] == [False, True, True]
