"""A reading that is late for some of its sliding windows: kept, and put right in these alone."""

import json

import pytest

from headrace_jobs.transforms import tagged
from headrace_jobs.transforms.cpu_load import live_usage_windows, past_usage_windows
from headrace_jobs.transforms.missed import missed_watermarks

pytestmark = pytest.mark.spark

SCHEMA = "topic STRING, partition INT, offset LONG, key BINARY, value STRING"
SLIDING = {"window_ms": 60_000, "slide_ms": 10_000}
BEGIN_MS = 1_767_000_000_000


def reading(offset, second):
    value = {"hostname": "web", "cpu": 0, "usage": 1, "occurred_at": BEGIN_MS + second * 1000}
    return {"topic": "t", "partition": 0, "offset": offset, "value": json.dumps(value)}


def by_start(rows):
    """The readings of each window, by the second in which it begins; the last revision counts."""
    ordered = sorted(rows, key=lambda row: row.revision)
    return {round(row.window_start.timestamp()) - BEGIN_MS // 1000: row.readings for row in ordered}


def test_a_replay_puts_its_closed_windows_right_and_leaves_the_open_ones(spark, tmp_path):
    (tmp_path / "in").mkdir()
    log = [reading(offset, second) for offset, second in enumerate((0, 25, 49, 8, 400, 401))]
    (tmp_path / "in" / "0.json").write_text("\n".join(map(json.dumps, log)))
    found, letters = [], []

    def take(batch, _):
        batch.persist()
        found.extend(tagged.results(batch).collect())
        letters.extend(tagged.rejected(batch).collect())
        batch.unpersist()

    live = spark.readStream.schema(SCHEMA).json(str(tmp_path / "in"))
    query = (
        live_usage_windows(live, watermark_ms=10_000, **SLIDING)
        .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(take)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    (letter,) = letters
    assert (letter.offset, letter.reason.split(":")[0]) == (3, "partly late")

    records = spark.read.schema(SCHEMA).json(str(tmp_path / "in"))
    late = records.where("offset = 3")
    known = spark.createDataFrame(
        [("t", 0, 3, letter.watermark)],
        "topic STRING, partition INT, offset LONG, watermark TIMESTAMP",
    )
    with missed_watermarks(known):
        touched = past_usage_windows(late, **SLIDING)
    right = by_start(past_usage_windows(records, **SLIDING).collect())
    closed = set(by_start(touched.collect()))
    # The watermark was at 39: windows that begin at -50, -40 and -30 had ended.
    assert closed == {-50, -40, -30}
    live_windows = by_start(found)
    wrong = {start for start, count in live_windows.items() if right[start] != count}
    assert wrong == closed
    # Without a replay's context all of its windows are computed.
    assert len(by_start(past_usage_windows(late, **SLIDING).collect())) == 6
