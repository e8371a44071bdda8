"""Times ahead of their records, and numbers beyond all bounds, are malformed."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

from headrace_jobs.transforms.event_time import event_time_windows
from headrace_jobs.transforms.newest import newest_by_key
from headrace_jobs.transforms.retail import _judged
from headrace_jobs.transforms.times import judge_future
from headrace_jobs.transforms.window_fold import WindowSpec

pytestmark = pytest.mark.spark

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
SCHEMA = "topic STRING, partition INT, offset LONG, key BINARY, value STRING, timestamp TIMESTAMP"


def records(spark, *values, timestamp=NOON):
    rows = [("t", 0, at, b"k", json.dumps(value), timestamp) for at, value in enumerate(values)]
    return spark.createDataFrame(rows, SCHEMA)


def ms(**ahead):
    return int((NOON + timedelta(**ahead)).timestamp() * 1000)


def reasons(judged):
    return [row.reason for row in judged.orderBy("offset").select("reason").collect()]


def test_a_till_whose_clock_runs_ahead_makes_no_other_one_late(spark):
    sale = {"sale_id": "s", "store": "north", "product": "p", "quantity": 1}
    times = [ms(), ms(seconds=60), ms(seconds=61), 99_999_999_999_999]
    log = [sale | {"occurred_at": each} for each in times]
    log.append({"heartbeat": True, "occurred_at": ms(hours=1)})
    ahead = "event_time is more than 60 s after the record"
    given = records(spark, *log)
    assert reasons(_judged("sale", given, 60_000_000)) == [None, None, ahead, ahead, ahead]
    assert reasons(_judged("sale", given, None)) == [None] * 5
    # A price may be known before it is valid.
    product = {"product": "p", "name": "Tea", "price_cents": 1, "reorder_below": 1}
    product |= {"reorder_quantity": 1, "valid_from": ms(days=30)}
    assert reasons(_judged("product", records(spark, product), 60_000_000)) == [None]


def test_retail_takes_no_number_that_would_outgrow_its_sums(spark):
    sale = {"sale_id": "s", "store": "north", "product": "p", "occurred_at": ms()}
    log = [sale | {"quantity": each} for each in (10**9, 10**9 + 1, 9 * 10**18, 0)]
    found = reasons(_judged("sale", records(spark, *log), None))
    large = "quantity is more than 1000000000"
    assert found == [None, large, large, "quantity is no number above 0"]
    product = {"product": "p", "name": "Tea", "price_cents": 10**12 + 1, "reorder_below": 1}
    product |= {"reorder_quantity": 1, "valid_from": ms()}
    given = records(spark, product, {**product, "price_cents": 10**12}, {**product, "name": None})
    assert reasons(_judged("product", given, None)) == [
        "price_cents is more than 1000000000000",
        None,
        "name is missing",
    ]


def test_jobs_of_ones_own_have_a_bound_of_an_hour_that_can_be_set(spark):
    def starts(**settings):
        spec = WindowSpec(
            keys=("key",),
            aggregates={"records": ("offset", "count")},
            window_us=10_000_000,
            slide_us=10_000_000,
            lateness_us=0,
            **settings,
        )
        at = F.timestamp_millis(F.get_json_object("value", "$.at").cast("long"))
        log = records(spark, {"at": ms(hours=1)}, {"at": ms(hours=1, seconds=10)})
        rows = log.withColumns({"event_time": at, "reason": F.lit(None).cast("string")})
        return event_time_windows(rows, spec).count()

    assert starts() == 1
    assert starts(future_us=None) == 2

    log = records(spark, {"id": "a", "t": ms()}, {"id": "a", "t": ms(hours=2)})
    names = {"key_field": "id", "time_field": "t", "ttl_ms": 10**9}
    (found,) = newest_by_key(log, **names).collect()
    assert json.loads(found.value)["t"] == ms()
    (found,) = newest_by_key(log, future_us=None, **names).collect()
    assert json.loads(found.value)["t"] == ms(hours=2)


def test_a_record_without_a_timestamp_is_not_judged(spark):
    none = datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    rows = records(spark, {}, timestamp=none).withColumns(
        {"event_time": F.lit(NOON), "reason": F.lit(None).cast("string")}
    )
    assert reasons(judge_future(rows, 1)) == [None]
    assert reasons(judge_future(rows.drop("timestamp"), 1)) == [None]
