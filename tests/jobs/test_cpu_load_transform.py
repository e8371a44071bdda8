"""The transform of cpu-load, over past data and over a live stream: the same rows."""

import json
import os
from datetime import datetime, timedelta

import pytest

from headrace_jobs.transforms.cpu_load import (
    FUTURE_TOLERANCE_SECONDS,
    parse_readings,
    rejected_records,
    usage_windows,
    well_formed_readings,
)

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
    chosen = {"window": "10 seconds", "watermark": "10 seconds", **settings}
    return usage_windows(well_formed_readings(frame), **chosen)


def rows(frame):
    """Rows as (seconds after noon of start and end, host, cpu, average, maximum, count), sorted."""
    noon = NOON.timestamp()
    selected = frame.selectExpr(
        "unix_seconds(window_start) AS start", "unix_seconds(window_end) AS end", "*"
    ).drop("window_start", "window_end")
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
        (0, 10, "web-1", 0, 20.0, 30.0, 2),
        (0, 10, "web-1", 1, 5.0, 5.0, 1),
        (0, 10, "web-2", 0, 99.0, 99.0, 1),
        (10, 20, "web-1", 0, 70.0, 70.0, 1),
    ]


def test_the_contract_is_these_columns_in_this_order(spark):
    frame = windows_of(parsed(spark, []))
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        ("window_start", "timestamp"),
        ("window_end", "timestamp"),
        ("hostname", "string"),
        ("cpu", "int"),
        ("usage_avg", "double"),
        ("usage_max", "double"),
        ("readings", "bigint"),
    ]


def test_sliding_windows_overlap(spark):
    found = rows(windows_of(parsed(spark, [reading(12, 40.0)]), slide="5 seconds"))
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
            {"cpu": "zero"},
            {"cpu": -1},
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
        (json.dumps({**good, "cpu": 1.5}), "cpu is no integer from 0"),
        (json.dumps({**good, "usage": "1"}), "usage is no number in 0..100"),
        (json.dumps({**good, "usage": 1e9}), "usage is no number in 0..100"),
        (json.dumps({**good, "occurred_at": "soon"}), "occurred_at is no ISO 8601 time"),
        (json.dumps({**good, "occurred_at": "0001-01-01T00:00:00Z"}), "occurred_at is before 1970"),
    ):
        (row,) = rejected_records(records(spark, [value])).collect()
        assert (row.value, row.reason) == (value, reason)


def test_times_may_have_any_offset_and_count_as_utc_without_one(spark):
    texts = ["2026-01-31T12:00:00Z", "2026-01-31T13:00:00.000+01:00", "2026-01-31 12:00:00"]
    values = [json.dumps({**json.loads(reading(0)), "occurred_at": text}) for text in texts]
    assert [row[-1] for row in rows(windows_of(parsed(spark, values)))] == [3]


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


class Stream:
    """A stream of files, one batch each, in the order they were written."""

    def __init__(self, spark, directory):
        self.spark, self.directory = spark, directory
        (directory / "input").mkdir()
        self.batches = 0

    def write(self, *values):
        path = self.directory / "input" / f"{self.batches}.txt"
        path.write_text("\n".join(values) + "\n")
        # The source orders files by their time, to the second.
        os.utime(path, (self.batches * 10 + 1_000_000, self.batches * 10 + 1_000_000))
        self.batches += 1

    def run(self, mode="append"):
        """Process what was written since the last run, a file a batch; return what came out."""
        out = []
        source = self.spark.readStream.format("text").option("maxFilesPerTrigger", 1)
        query = (
            windows_of(parse_readings(source.load(str(self.directory / "input"))))
            .writeStream.outputMode(mode)
            .option("checkpointLocation", str(self.directory / "checkpoint"))
            .foreachBatch(lambda batch, _: out.append(rows(batch)))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        dropped = sum(
            operator.numRowsDroppedByWatermark
            for progress in query.recentProgress
            for operator in progress.stateOperators
        )
        return [row for batch in out for row in batch], dropped


@pytest.fixture
def stream(spark, tmp_path):
    return Stream(spark, tmp_path)


def test_late_within_the_watermark_counts_and_beyond_it_is_dropped(stream):
    stream.write(reading(1, 10.0), reading(25, 50.0))  # the watermark becomes 15 s: [0, 10) is done
    # A batch drops what was late already when the batch before it began (SPARK-40925).
    stream.write(reading(25, 50.0))
    stream.write(reading(16, 20.0), reading(2, 90.0))  # 9 s late counts, 23 s late is dropped
    stream.write(reading(45, 50.0))  # closes [10, 20) and [20, 30)
    found, dropped = stream.run()
    assert found == [
        (0, 10, "web-1", 0, 10.0, 10.0, 1),
        (10, 20, "web-1", 0, 20.0, 20.0, 1),
        (20, 30, "web-1", 0, 50.0, 50.0, 2),
    ]
    assert dropped == 1


def test_in_append_mode_a_window_comes_once_when_the_watermark_passes_its_end(stream):
    stream.write(reading(1, 10.0))
    stream.write(reading(19.9, 10.0))  # the watermark is 9.9 s: not yet
    assert stream.run() == ([], 0)
    stream.write(reading(20, 10.0))
    found, _ = stream.run()  # from the checkpoint: state survives the restart
    assert found == [(0, 10, "web-1", 0, 10.0, 10.0, 1)]


def test_in_update_mode_a_window_comes_whenever_it_changed(stream):
    stream.write(reading(1, 10.0))
    stream.write(reading(2, 30.0))
    found, _ = stream.run("update")
    assert found == [(0, 10, "web-1", 0, 10.0, 10.0, 1), (0, 10, "web-1", 0, 20.0, 30.0, 2)]


def test_past_and_live_data_give_the_same_rows(spark, stream):
    values = [reading(second, second % 17, cpu=second % 3) for second in range(60)]
    for first in range(0, 60, 20):
        stream.write(*values[first : first + 20])
    stream.write(reading(200))
    live, _ = stream.run()
    assert live == [row for row in rows(windows_of(parsed(spark, values))) if row[1] <= 60]


def test_garbage_in_a_stream_stops_nothing(stream):
    stream.write("garbage", reading(1, 10.0), "{")
    stream.write(reading(30))
    assert stream.run()[0] == [(0, 10, "web-1", 0, 10.0, 10.0, 1)]
