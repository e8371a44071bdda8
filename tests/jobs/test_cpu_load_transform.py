"""The transform of cpu-load, over past data and over a live stream: the same rows."""

import base64
import json
import os
import random
from collections import Counter
from datetime import datetime, timedelta

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

from headrace_jobs.transforms import tagged
from headrace_jobs.transforms.cpu_load import (
    FUTURE_TOLERANCE_SECONDS,
    live_usage_windows,
    parse_readings,
    rejected_records,
    usage_windows,
    well_formed_readings,
)
from headrace_jobs.transforms.tagged import rejected, results
from headrace_jobs.transforms.times import event_time

pytestmark = pytest.mark.spark

NOON = datetime.fromisoformat("2026-01-31T12:00:00+00:00")


def reading(seconds, usage=50.0, *, hostname="web-1", cpu=0):
    at = (NOON + timedelta(seconds=seconds)).isoformat()
    return json.dumps({"hostname": hostname, "cpu": cpu, "usage": usage, "occurred_at": at})


def records(spark, values):
    return spark.createDataFrame([(value,) for value in values], "value STRING")


def parsed(spark, values):
    return parse_readings(records(spark, values))


def windows_of(frame, **settings):
    return usage_windows(well_formed_readings(frame), **{"window_ms": 10_000, **settings})


def rows(frame):
    """Rows as (seconds after noon of start and end, host, cpu, average, maximum, count), sorted."""
    noon = NOON.timestamp()
    selected = frame.selectExpr(
        "unix_seconds(window_start) AS start", "unix_seconds(window_end) AS end", "*"
    ).drop("window_start", "window_end", "revision")
    found = [(row[0] - int(noon), row[1] - int(noon), *row[2:]) for row in selected.collect()]
    return sorted(found)


def test_usage_is_averaged_and_its_maximum_taken_for_each_host_cpu_and_window(spark):
    values = [
        reading(0, 10.0),
        reading(9.999, 30.0),
        reading(10, 70.0),
        reading(5, 5.0, cpu=1),
        reading(5, 99.0, hostname="web-2"),
    ]
    assert rows(windows_of(parsed(spark, values))) == [
        (0, 10, "web-1", "0", 20.0, 30.0, 2),
        (0, 10, "web-1", "1", 5.0, 5.0, 1),
        (0, 10, "web-2", "0", 99.0, 99.0, 1),
        (10, 20, "web-1", "0", 70.0, 70.0, 1),
    ]


def test_the_contract_is_these_columns_in_this_order(spark):
    frame = windows_of(parsed(spark, []))
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        ("window_start", "timestamp"),
        ("window_end", "timestamp"),
        ("hostname", "string"),
        ("cpu", "string"),
        ("usage_avg", "double"),
        ("usage_max", "double"),
        ("readings", "bigint"),
        ("revision", "bigint"),
    ]


def test_sliding_windows_overlap(spark):
    found = rows(windows_of(parsed(spark, [reading(12, 40.0)]), slide_ms=5000))
    assert [row[:2] for row in found] == [(5, 15), (10, 20)]


def test_what_is_malformed_is_set_aside_and_counted_not_fatal(spark):
    good = json.loads(reading(0))
    bad = [
        "garbage",
        "",
        "[1, 2]",
        "null",
        '{"hostname": "web-1"',
        *(json.dumps({**good, **change}) for change in (
            {"hostname": None},
            {"hostname": " "},
            {"cpu": ""},
            {"cpu": "-1"},
            {"cpu": -1},
            {"cpu": 1.5},
            {"cpu": {"id": 1}},
            {"usage": "high"},
            {"usage": -0.1},
            {"usage": 100.1},
            {"usage": None},
            {"occurred_at": "12:00"},
            {"occurred_at": "yesterday"},
            {"occurred_at": "2026-13-31T12:00:00Z"},
            {"occurred_at": 1769860800},
        )),
        json.dumps(good).replace("50.0", "NaN"),
    ]  # fmt: skip
    frame = records(spark, [*bad, reading(0), None])
    rejected = rejected_records(frame).collect()
    assert sorted(row.value or "" for row in rejected) == sorted([*bad, ""])
    assert well_formed_readings(parse_readings(frame)).count() == 1


def test_each_malformed_record_has_a_reason_that_names_what_is_wrong(spark):
    good = json.loads(reading(0))
    for value, reason in (
        (None, "it has no value"),
        ("garbage", "it is no reading"),
        ("{}", "it is no reading"),
        (json.dumps({**good, "hostname": ""}), "hostname is missing or empty"),
        (json.dumps({**good, "cpu": 1.5}), "cpu is neither an integer from 0 nor a name"),
        (json.dumps({**good, "usage": "1"}), "usage is no number in 0..100"),
        (json.dumps({**good, "usage": 1e9}), "usage is no number in 0..100"),
        (
            json.dumps({**good, "occurred_at": "soon"}),
            "occurred_at is neither ISO 8601 nor milliseconds",
        ),
        (json.dumps({**good, "occurred_at": "0001-01-01T00:00:00Z"}), "occurred_at is before 1970"),
    ):
        (row,) = rejected_records(records(spark, [value])).collect()
        assert (row.value, row.reason) == (value, reason)


def test_readings_may_have_their_cpu_as_a_string_and_their_time_in_milliseconds(spark):
    def seed_form(second, **changes):
        at = int(NOON.timestamp() * 1000) + second * 1000
        return json.dumps(
            {"hostname": "web-1", "cpu": "0", "usage": 10, "occurred_at": at} | changes
        )

    values = [
        seed_form(0),
        seed_form(1, cpu=0, usage=20.0),
        seed_form(0, occurred_at=str(int(NOON.timestamp() * 1000) + 2000)),
        reading(3, 40.0),
        seed_form(4, cpu="all"),
    ]
    assert rows(windows_of(parsed(spark, values))) == [
        (0, 10, "web-1", "0", 20.0, 40.0, 4),
        (0, 10, "web-1", "all", 10.0, 10.0, 1),
    ]


def test_times_may_have_any_offset_and_count_as_utc_without_one(spark):
    texts = ["2026-01-31T12:00:00Z", "2026-01-31T13:00:00.000+01:00", "2026-01-31 12:00:00"]
    values = [json.dumps({**json.loads(reading(0)), "occurred_at": text}) for text in texts]
    assert [row[-1] for row in rows(windows_of(parsed(spark, values)))] == [3]


def test_only_twelve_to_fourteen_digits_are_milliseconds_however_a_number_could_be_read(spark):
    texts = {
        "1769860800000": 1769860800000,
        "100000000000": 10**11,
        "99999999999999": 10**14 - 1,
        "0100000000000": 10**11,
        "000000000001": 1,
        "99999999999": None,
        "100000000000000": None,
        "00100000000000000": None,
        "-100000000000": None,
        "+1769860800000": None,
        " 1769860800000": None,
        "1769860800000.5": None,
        "1.7698608e12": None,
        "1769860800000L": None,
        "1769860800000\n": None,
        "1769860800000\\n": None,
        "": None,
    }
    frame = spark.createDataFrame([(text,) for text in texts], "text STRING")
    found = frame.select("text", F.unix_millis(event_time(F.col("text")))).collect()
    assert dict(map(tuple, found)) == texts


def test_a_cpu_is_digits_or_a_name_however_a_number_could_be_read(spark):
    good = ["0", "7", "007", "2147483647", "2147483648", "9" * 30, "cpu0", "total", "a.b:c-d_e"]
    bad = [
        "",
        " ",
        "-1",
        "+1",
        " 1",
        "1 ",
        "1.0",
        "1e3",
        "0x1",
        "_x",
        "a b",
        "1a",
        "-0",
        "0\n",
        "cpu0\n",
    ]
    frame = parsed(spark, [reading(0, cpu=text) for text in good + bad])
    taken = [row.cpu for row in well_formed_readings(frame).collect()]
    assert taken == good


def test_a_clock_that_runs_far_ahead_cannot_move_the_watermark(spark):
    arrived = NOON
    frame = spark.createDataFrame(
        [
            (reading(FUTURE_TOLERANCE_SECONDS), arrived),
            (reading(FUTURE_TOLERANCE_SECONDS + 1), arrived),
            (reading(-86_400), arrived),
        ],
        "value STRING, timestamp TIMESTAMP",
    )
    assert [row.malformed for row in parse_readings(frame).collect()] == [False, True, False]


def test_kafkas_binary_values_are_read(spark):
    frame = spark.createDataFrame([(bytearray(reading(0), "utf-8"),)], "value BINARY")
    assert well_formed_readings(parse_readings(frame)).count() == 1


LOG_SCHEMA = (
    "topic STRING, partition INT, offset LONG, key BINARY, value BINARY, timestamp TIMESTAMP"
)


class Stream:
    """A stream of files, one batch each, in the order they were written, with Kafka's columns."""

    def __init__(self, spark, directory):
        self.spark, self.directory = spark, directory
        (directory / "input").mkdir()
        self.batches = 0
        self.ends = Counter()

    def write(self, *values, partition=0):
        self.write_batch({partition: values})

    def write_batch(self, values_by_partition):
        """Write the next records of each partition as one batch, in any order."""
        lines = []
        for partition, values in values_by_partition.items():
            for value in values:
                record = {"topic": "t", "partition": partition, "offset": self.ends[partition]}
                record["value"] = base64.b64encode(value.encode()).decode()
                lines.append(json.dumps({**record, "timestamp": "2026-01-31T12:00:00Z"}))
                self.ends[partition] += 1
        path = self.directory / "input" / f"{self.batches}.json"
        path.write_text("\n".join(sorted(lines)) + "\n")
        # The source orders files by their time, to the second.
        os.utime(path, (self.batches * 10 + 1_000_000, self.batches * 10 + 1_000_000))
        self.batches += 1

    def run(self, mode="append"):
        """Process what was written since the last run, a file a batch.

        Returns the windows that came out and the records that were set aside.
        """
        windows, letters, progress = [], [], []

        def take(batch, _):
            batch.persist()
            windows.extend(rows(results(batch)))
            letters.extend(rejected(batch).collect())
            progress.extend(each.asDict() for each in tagged.progress(batch).collect())
            batch.unpersist()

        source = self.spark.readStream.schema(LOG_SCHEMA).option("maxFilesPerTrigger", 1)
        query = (
            live_usage_windows(
                source.json(str(self.directory / "input")),
                window_ms=10_000,
                watermark_ms=10_000,
                is_update=mode == "update",
            )
            .writeStream.outputMode(mode)
            .option("checkpointLocation", str(self.directory / "checkpoint"))
            .foreachBatch(take)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        self.counted = sum(each["counted"] for each in progress)
        return windows, letters


@pytest.fixture
def stream(spark, tmp_path):
    return Stream(spark, tmp_path)


def test_late_within_the_watermark_counts_and_beyond_it_is_kept_beside_with_what_it_missed(stream):
    stream.write(reading(1, 10.0), reading(24, 40.0), reading(25, 50.0), "garbage")
    # 9 s late counts, 23 s late does not.
    stream.write(reading(16, 20.0), reading(2, 90.0))
    windows, letters = stream.run()
    assert windows == [(0, 10, "web-1", "0", 10.0, 10.0, 1)]
    late, malformed = sorted(letters, key=lambda letter: letter.reason, reverse=True)
    assert (malformed.topic, malformed.partition, malformed.offset) == ("t", 0, 3)
    assert (bytes(malformed.value), malformed.reason) == (b"garbage", "it is no reading")
    assert malformed.watermark is None
    assert (late.offset, late.value.decode()) == (5, reading(2, 90.0))
    assert late.watermark.timestamp() == (NOON + timedelta(seconds=15)).timestamp()
    assert stream.counted + len(letters) == 6
    # From the checkpoint: state survives the restart.
    stream.write(reading(45, 50.0), reading(46, 50.0))
    assert stream.run() == (
        [
            (10, 20, "web-1", "0", 20.0, 20.0, 1),
            (20, 30, "web-1", "0", 45.0, 50.0, 2),
        ],
        [],
    )


def test_in_update_mode_a_window_comes_whenever_it_changed(stream):
    stream.write(reading(1, 10.0))
    stream.write(reading(2, 30.0))
    found, _ = stream.run("update")
    assert found == [(0, 10, "web-1", "0", 10.0, 10.0, 1), (0, 10, "web-1", "0", 20.0, 30.0, 2)]


def test_past_and_live_data_give_the_same_rows_however_skewed_and_shuffled(spark, tmp_path):
    rng = random.Random(7)
    log = {}
    for partition in range(3):
        seconds = sorted((second + rng.uniform(0, 9), second) for second in range(120))
        log[partition] = [
            reading(at, rng.uniform(0, 100), hostname=f"web-{partition}", cpu=rng.randrange(2))
            for _, at in seconds
        ]
        # What closes every window.
        log[partition] += [
            reading(at, hostname=f"web-{partition}", cpu=cpu) for at in (900, 901) for cpu in (0, 1)
        ]
    every = [value for values in log.values() for value in values]
    past = [row for row in rows(windows_of(parsed(spark, every))) if row[1] <= 200]
    for name, cuts in (("live", (30, 31, 29)), ("backfill", (124, 10, 60))):
        (tmp_path / name).mkdir()
        stream = Stream(spark, tmp_path / name)
        rest, sizes = dict(log), cuts
        while any(rest.values()):
            stream.write_batch({at: rest[at][:size] for at, size in enumerate(sizes)})
            rest = {at: values[sizes[at] :] for at, values in rest.items()}
            if stream.batches == 3:
                # The rest at once: batches cost a second each.
                sizes = (999, 999, 999)
        windows, letters = stream.run()
        assert (name, sorted(windows), letters) == (name, past, [])
