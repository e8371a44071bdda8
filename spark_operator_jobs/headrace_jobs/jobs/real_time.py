"""Spark's real-time mode: each record is written as it comes, at least once.

A fast lane for jobs without state, from topics into one topic. Spark's own Kafka sink takes records
one by one while a batch lasts, so nothing of ours is called for it: neither sinks with progress,
nor dead letters, nor results on the terminal can take part. The checkpoint, and the group after it,
are written when a batch ends; what a killed driver had written since then is written again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_jobs.delivery import Delivery
from headrace_jobs.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace_jobs.declaration import Job
    from headrace_jobs.jobs.arguments import JobSettings

__all__ = ["plan_refusals", "refusals", "start_real_time"]

#: Spark's own bound (`spark.sql.streaming.realTimeMode.minBatchDuration`).
_BATCH_MS_MIN = 5_000


def refusals(job: Job, settings: JobSettings) -> list[str]:
    """Return why a job as it was asked for cannot run in real time. Pure."""
    if settings.real_time_ms is None:
        return []
    sinks = [sink.describe() for sink in job.sinks if not isinstance(sink, KafkaSink)]
    checks = {
        f"a batch lasts {_BATCH_MS_MIN // 1000} s at least": settings.real_time_ms < _BATCH_MS_MIN,
        f"delivery {job.delivery} cannot hold: progress is stored after the records, so choose"
        f" {Delivery.AT_LEAST_ONCE}": job.delivery is not Delivery.AT_LEAST_ONCE,
        f"results go into one topic, not into {', '.join(sinks) or 'several'}": (
            bool(sinks) or len(job.sinks) != 1
        ),
        "a batch has no end at which records could be set aside: leave out --dead-letter-topic": (
            settings.dead_letter_topic is not None
        ),
        "it has no end, and --available-now has": settings.is_available_now,
    }
    return [f"--real-time: {reason}" for reason, is_so in checks.items() if is_so]


def plan_refusals(results: DataFrame, *, is_stateful: bool) -> list[str]:
    """Return why what a transform returned cannot run in real time.

    Spark itself names operators that it does not have there, when the query starts.
    """
    from headrace_jobs.transforms import tagged

    checks = {
        "the job has state, which is kept batch by batch": is_stateful,
        "the transform sets records aside beside its results": tagged.is_tagged(results),
    }
    return [f"--real-time: {reason}" for reason, is_so in checks.items() if is_so]


def start_real_time(results: DataFrame, job: Job, settings: JobSettings, checkpoint: str) -> Any:
    """Start the query; every record is acknowledged by all in-sync replicas before a batch ends."""
    (sink,) = job.sinks
    if not isinstance(sink, KafkaSink):
        raise TypeError(f"{sink.describe()} was to be refused")
    writer: Any = (
        sink.as_records(results)
        .writeStream.queryName(job.query_name)
        .format("kafka")
        .option("kafka.bootstrap.servers", settings.bootstrap_servers)
        .option("kafka.acks", "all")
        .option("topic", settings.output_topic)
        .option("checkpointLocation", checkpoint)
        # The only mode that Spark has there; without state it is append.
        .outputMode("update")
    )
    # PySpark's own overloads leave the argument out.
    return writer.trigger(realTime=f"{settings.real_time_ms} milliseconds").start()
