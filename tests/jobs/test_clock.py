"""The clock beside a query's topics: one of its sources for good, whether it ticks or not."""

from types import SimpleNamespace

import pytest

from headrace_jobs.jobs.runner import _silence
from headrace_jobs.sources.clock import read_ticks

pytestmark = pytest.mark.spark

MINUTE, NEVER = 60.0, 0.0


@pytest.fixture
def run(spark, tmp_path):
    """A function that runs a query over records and the clock, as a driver with this timeout."""
    records = tmp_path / "records"
    records.mkdir()
    written = []

    def run_it(idle_seconds, *, ticks=False):
        (records / f"{len(list(records.iterdir()))}.txt").write_text("a record\n")
        session = spark.newSession()
        settings = SimpleNamespace(
            idle_timeout_seconds=idle_seconds, real_time_ms=None, input_topics=("t",)
        )
        generation = SimpleNamespace(path=str(tmp_path / "checkpoint"))
        parts = SimpleNamespace(start=SimpleNamespace(generation=generation))
        silence = _silence(session, settings, parts)
        if ticks:
            silence.request_tick()
        frame = session.readStream.text(str(records)).selectExpr("value AS row")
        clock = read_ticks(session, 1)
        if clock is not None:
            frame = frame.union(clock.selectExpr("topic AS row"))
        query = (
            frame.writeStream.option("checkpointLocation", generation.path)
            .foreachBatch(lambda batch, _: written.extend(row.row for row in batch.collect()))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return silence, written

    return run_it


def test_a_checkpoint_with_a_clock_goes_on_where_silence_is_never_looked_for(run):
    run(MINUTE, ticks=True)
    silence, written = run(NEVER)
    assert sorted(written) == ["a record", "a record", "t"]
    silence._heard_at = 0.0
    silence.idle()
    assert not silence._file.exists()
    assert sorted(run(MINUTE)[1]) == ["a record", "a record", "a record", "t"]


def test_a_clock_that_never_ticked_may_tick_later(run):
    run(NEVER)
    assert sorted(run(MINUTE, ticks=True)[1]) == ["a record", "a record", "t"]
