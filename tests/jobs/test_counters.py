"""A batch's counters are those of its records, also where a part of it is computed twice.

Spark observes rows as they are computed (`DataFrame.observe`, and what a source has read). An
executor that is lost between two steps of a batch takes with it what was kept of the rows, and they
are computed again.
"""

import json
from types import SimpleNamespace

import pytest

from headrace_jobs.delivery import Delivery
from headrace_jobs.jobs.outputs import Outputs
from headrace_jobs.progress.listener import ProgressListener
from headrace_jobs.progress.metrics import JobMetrics
from headrace_jobs.transforms.cpu_load import live_usage_windows

pytestmark = pytest.mark.spark

NOON_MS = 1_769_860_800_000
RECORDS = "topic STRING, partition INT, offset LONG, key BINARY, value BINARY, timestamp TIMESTAMP"


class ForgetfulSink:
    """A sink behind which nothing is kept of a batch's rows, as when executors are lost."""

    keeps_progress = False

    def __init__(self, spark):
        self._spark = spark

    def unfit(self, frame):
        del frame

    def write(self, frame, batch):
        del batch
        frame.collect()
        self._spark.catalog.clearCache()

    def close(self):
        """Nothing is open."""


def add_batch(spark, folder, offset, *seconds):
    """Add a file with a reading for each second after noon, None for what is no reading."""
    values = [
        json.dumps(
            {"hostname": "web", "cpu": 0, "usage": 1, "occurred_at": NOON_MS + 1000 * second}
        )
        if second is not None
        else "garbage"
        for second in seconds
    ]
    rows = [("in", 0, offset + at, None, value.encode(), None) for at, value in enumerate(values)]
    frame = spark.createDataFrame(rows, RECORDS).drop("timestamp")
    frame.coalesce(1).write.mode("append").parquet(str(folder))


def test_what_is_computed_again_is_not_counted_again(spark, tmp_path):
    source = tmp_path / "in"
    add_batch(spark, source, 0, 0, 1, 2, None)
    add_batch(spark, source, 4, 95, 96, 3, None, None)
    schema = spark.read.parquet(str(source)).schema
    records = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))
    results = live_usage_windows(records, window_ms=10_000, watermark_ms=10_000)
    metrics = JobMetrics("app", "query", trigger_interval_seconds=2.0)
    outputs = Outputs(writers=[ForgetfulSink(spark)], delivery=Delivery.AT_LEAST_ONCE, driver=None)
    outputs.metrics = metrics
    listener = ProgressListener(metrics, None)
    query = (
        results.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(outputs.write)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    for progress in query.recentProgress:
        listener.take(progress)
    names = {"job": "app", "query": "query"}
    found = SimpleNamespace(
        **{
            name: metrics.registry.get_sample_value(f"headrace_job_{name}_total", names)
            for name in ("counted_records", "late_records", "malformed_records", "input_rows")
        },
        output_rows=metrics.registry.get_sample_value("headrace_job_output_rows_total", names),
    )
    assert vars(found) == {
        "counted_records": 5,
        "late_records": 1,
        "malformed_records": 3,
        "input_rows": 9,
        "output_rows": 1,
    }
