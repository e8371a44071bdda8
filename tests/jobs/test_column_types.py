"""Keys and numbers of every type come out of a stream as they do of the past."""

import json
import math

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

from headrace_jobs.transforms import tagged
from headrace_jobs.transforms.event_time import event_time_windows
from headrace_jobs.transforms.newest import newest_events
from headrace_jobs.transforms.newest_fold import NewestSpec
from headrace_jobs.transforms.window_fold import WindowSpec

pytestmark = pytest.mark.spark

BIG = 2**53
SCHEMA = (
    "topic STRING, partition INT, offset LONG, key BINARY, value BINARY, id LONG, is_on BOOLEAN,"
    " day DATE, price DECIMAL(10,2), seen TIMESTAMP, n INT, at LONG"
)


class Log:
    """Records as files of JSON, one for each batch."""

    def __init__(self, spark, folder):
        self._spark, self._folder = spark, folder
        self._count = 0
        (folder / "in").mkdir()

    def add(self, *records):
        lines = [
            json.dumps({"topic": "t", "partition": 0, "offset": self._count + at, **record})
            for at, record in enumerate(records)
        ]
        (self._folder / "in" / f"{self._count:09}.json").write_text("\n".join(lines))
        self._count += len(records)

    def past(self):
        return self._rows(self._spark.read)

    def run(self, transform):
        """Read what has come since; returns the results and (offset, reason) of the rejected."""
        found, letters = [], []

        def take(batch, _):
            batch.persist()
            found.extend(tagged.results(batch).collect())
            letters.extend((row.offset, row.reason) for row in tagged.rejected(batch).collect())
            batch.unpersist()

        query = (
            transform(self._rows(self._spark.readStream))
            .writeStream.outputMode("update")
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .foreachBatch(take)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return found, letters

    def _rows(self, reader):
        rows = reader.schema(SCHEMA).json(str(self._folder / "in"))
        reason = F.when(F.col("n") < 0, "n is below 0")
        return rows.withColumns({"event_time": F.timestamp_seconds("at"), "reason": reason})


@pytest.fixture
def log(spark, tmp_path):
    return Log(spark, tmp_path)


def windows(keys, aggregates):
    spec = WindowSpec(
        keys=keys,
        aggregates=aggregates,
        window_us=10_000_000,
        slide_us=10_000_000,
        lateness_us=0,
        is_update=True,
    )
    return lambda rows: event_time_windows(rows, spec)


def record(**fields):
    return {"id": 1, "n": 1, "at": 1_000_000_000, **fields}


def values(rows, *names):
    return sorted((tuple(row[name] for name in names) for row in rows), key=str)


@pytest.mark.parametrize("more", [(), ("seen",)])
def test_integer_keys_beside_nulls_and_malformed_records_are_exact(log, more):
    fields = dict.fromkeys(more, "2026-01-31T12:00:00Z")
    ids = [BIG + at for at in range(40)]
    transform = windows(("id", *more), {"records": ("n", "count")})
    malformed = [record(id=None, n=-1)] * 40
    log.add(*(record(id=each, **fields) for each in [*ids, None]), *malformed)
    found, letters = log.run(transform)
    expected = [(each, 1) for each in [*ids, None]]
    assert values(found, "id", "records") == sorted(expected, key=str)
    assert {reason for _, reason in letters} == {"n is below 0"}
    assert len(letters) == 40
    # The state has them, too.
    log.add(*(record(id=each, **fields) for each in [*ids, None]), *malformed)
    expected = sorted(((each, 2) for each in [*ids, None]), key=str)
    assert values(log.run(transform)[0], "id", "records") == expected
    assert values(transform(log.past()).collect(), "id", "records") == expected


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("is_on", [True, False, None]),
        ("day", ["2026-01-31", None]),
        ("price", ["99999999.99", "0.01", None]),
        ("seen", ["2026-01-31T12:00:00.000001Z", None]),
    ],
)
def test_keys_of_any_type_are_those_of_the_past(log, name, given):
    transform = windows((name,), {"records": ("n", "count")})
    for _ in range(2):
        log.add(*(record(**{name: each}) for each in given), record(n=-1))
        found, _ = log.run(transform)
    past = transform(log.past()).collect()
    assert values(found, name, "records") == values(past, name, "records")
    assert len(past) == len(given)


def test_a_null_is_no_zero_among_the_newest_values(log):
    spec = NewestSpec(keys=("id",), value_columns=("n", "is_on"), ttl_ms=10**9)
    log.add(record(n=None), record(id=2, n=3, is_on=True), record(id=3, n=-1))
    found, _ = log.run(lambda rows: newest_events(rows, spec))
    assert values(found, "id", "n", "is_on") == [(1, None, None), (2, 3, True)]
    log.add(record(id=3, n=4, is_on=False))
    found, _ = log.run(lambda rows: newest_events(rows, spec))
    assert values(found, "id", "n", "is_on") == [(3, 4, False)]


def test_a_record_without_an_event_time_is_malformed_and_not_of_1970(log):
    transform = windows(("id",), {"records": ("n", "count")})
    log.add(record(), record(at=None), record(at=None, n=-1))
    found, letters = log.run(transform)
    assert values(found, "id", "records") == [(1, 1)]
    assert sorted(letters) == [(1, "event_time is null"), (2, "n is below 0")]
    assert values(transform(log.past()).collect(), "id", "records") == [(1, 1)]


def test_a_sum_outgrows_its_numbers_as_sparks_own_does(log):
    sums = {"units": ("n", "sum"), "total": ("price", "sum"), "most": ("n", "max")}
    transform = windows(("id",), sums)
    big = record(n=2_000_000_000, price="99999999.99")
    for _ in range(2):
        log.add(big, big)
        found, _ = log.run(transform)
    past = transform(log.past())
    assert values(found, *sums) == values(past.collect(), *sums)
    assert found[0].units == 8_000_000_000
    assert math.isclose(found[0].total, 4 * 99999999.99)
    live = transform(log._rows(log._spark.readStream))
    assert [live.schema[each] for each in sums] == [past.schema[each] for each in sums]
