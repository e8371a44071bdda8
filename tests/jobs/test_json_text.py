"""Values that are not one JSON object: set aside by every job, whatever Spark's parser takes."""

import json

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

from headrace_jobs.schemas.frames import Json, decode
from headrace_jobs.sinks.kafka import as_json_records
from headrace_jobs.sinks.postgres_rows import portable
from headrace_jobs.sinks.search_task import Documents, as_documents
from headrace_jobs.transforms import tagged
from headrace_jobs.transforms.cpu_load import parse_readings, well_formed_readings
from headrace_jobs.transforms.newest import newest_by_key
from headrace_jobs.transforms.retail import _judged
from headrace_jobs.transforms.retail_fold import SALE

pytestmark = pytest.mark.spark

EVENT = {
    "hostname": "ID",
    "cpu": 0,
    "usage": 5.0,
    "sale_id": "ID",
    "store": "north",
    "product": "tea",
    "quantity": 2,
    "occurred_at": "2026-01-31T12:00:00Z",
}
PLAIN = json.dumps(EVENT).encode()
NESTED = json.dumps(EVENT | {"more": {"text": "}{] "}}).encode()
# Each behind an object.
TRAILING = [b" garbage", b'{"a": 1}', b"null", b',{"a": 1}', b"]", b"}", b']"}', b"},{}]"]


def frame(spark, values):
    """Records whose `id`, where they have one, is their offset."""
    rows = [
        ("in", 0, offset, b"k", value and value.replace(b"ID", str(offset).encode()))
        for offset, value in enumerate(values)
    ]
    schema = "topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY"
    return spark.createDataFrame(rows, schema)


def well_formed(job, records):
    """The ids of the records that a job takes."""
    if job == "cpu-load":
        taken = well_formed_readings(parse_readings(records)).select("hostname")
    elif job == "retail":
        taken = _judged(SALE, records, None).where("reason IS NULL").select("id")
    elif job == "newest":
        fields = {"key_field": "hostname", "time_field": "occurred_at", "ttl_ms": 1}
        taken = newest_by_key(records, **fields).select("key")
    else:
        decoded = decode(records, Json(columns="hostname STRING"))
        taken = decoded.where("reason IS NULL").select("decoded.hostname")
    return sorted(int(row[0]) for row in taken.collect())


@pytest.mark.parametrize("job", ["cpu-load", "retail", "newest", "schema"])
def test_what_is_more_or_less_than_one_json_object_is_malformed(spark, job):
    bad = [
        *(good + more for good in (PLAIN, NESTED) for more in TRAILING),
        PLAIN.replace(b"north", b"nor\xff"),
        NESTED.replace(b"north", b"nor\xc3"),
        PLAIN[:-1] + b", garbage}",
        b"[" + PLAIN + b"]",
        b"null",
        b"",
        None,
    ]
    good = [
        PLAIN,
        NESTED,
        b" " + PLAIN + b"\r\n\t ",
        NESTED + b" \n",
        PLAIN.replace(b"north", "nörd}".encode()),
    ]
    assert well_formed(job, frame(spark, [*good, *bad])) == list(range(len(good)))


TIMES = "2026-01-31T12:00:00.000001Z", "2026-01-31T12:00:00.000000Z", "2026-01-31T12:00:00.123456"


@pytest.mark.parametrize("place", ["topic", "dead letters", "table", "index"])
def test_times_keep_their_microseconds_wherever_they_are_written_as_json(spark, place):
    """Spark's own JSON has three digits: two events of one millisecond had the same time."""
    rows = spark.range(1).select(
        F.lit("a").alias("k"),
        F.expr(f"TIMESTAMP '{TIMES[0]}'").alias("at"),
        F.expr(f"struct(array(TIMESTAMP '{TIMES[1]}') AS ends)").alias("nested"),
        F.expr(f"map('local', TIMESTAMP_NTZ '{TIMES[2]}')").alias("named"),
    )
    if place == "topic":
        (row,) = as_json_records(rows, ("k",)).collect()
        found = json.loads(row.value)
    elif place == "dead letters":
        (row,) = tagged.unfit(rows, rows.columns, F.lit("unfit")).collect()
        found = json.loads(bytes(row.value))
    elif place == "table":
        (row,) = portable(rows).collect()
        assert row.at.microsecond == 1
        found = {"k": row.k, "at": TIMES[0]}
        found |= {name: json.loads(row[name]) for name in ("nested", "named")}
    else:
        what = Documents(
            index="i", is_alias=False, key=("k",), version=None, deleted=None, outage_seconds_max=1
        )
        (row,) = as_documents(rows, what, 7).collect()
        found = json.loads(row.body)
    nested, named = {"ends": [TIMES[1]]}, {"local": TIMES[2]}
    assert found == {"k": "a", "at": TIMES[0], "nested": nested, "named": named}
