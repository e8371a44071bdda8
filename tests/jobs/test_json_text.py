"""Values that are not one JSON object: set aside by every job, whatever Spark's parser takes."""

import json

import pytest

from headrace_jobs.schemas.frames import Json, decode
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
