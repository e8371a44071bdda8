"""Malformed records into a topic of their own, as they came.

A streaming query has one output, and that is the results. So when a batch had malformed records (an
observation of the query says how many), its range of offsets is read once more, and what the job
rejects is written out, before the batch is committed: at least once. A batch without any costs
nothing. A topic that does not take them is counted and logged with the range, and the job goes on:
bad input never stops good input.

Key, value and headers of a record are untouched; these headers are added:
`headrace.topic`, `headrace.partition`, `headrace.offset`, `headrace.reason`, `headrace.job`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

from headrace_jobs.progress.checkpoint import batch_range
from headrace_jobs.progress.listener import OBSERVED_INPUT
from headrace_jobs.progress.offsets import format_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from headrace_jobs.progress.metrics import JobMetrics
    from headrace_jobs.progress.offsets import TopicPartition

__all__ = ["DeadLetters", "as_dead_letters"]

# Kafka's two minutes would hold up the good records of the batch.
DELIVERY_TIMEOUT_MS = 20_000
# Spark's word for where a partition begins.
EARLIEST = -2

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class DeadLetters:
    """The dead-letter topic of one query. `rejected` keeps malformed records and adds `reason`."""

    session: SparkSession
    query_name: str
    bootstrap_servers: str
    topic: str
    job: str
    checkpoint: Path
    rejected: Callable[[DataFrame], DataFrame]
    metrics: JobMetrics

    def write(self, batch_id: int) -> None:
        """Write the batch's malformed records. Call it when the batch was computed."""
        if self._count_malformed() == 0:
            return
        offsets = ""
        try:
            begin, end = batch_range(self.checkpoint, batch_id)
            offsets = f"{format_offsets(begin)} to {format_offsets(end)}"
            count = self._write(self._read(begin, end))
        except (PySparkException, Py4JJavaError, OSError, ValueError) as error:
            self.metrics.dead_letters_failed()
            _log.warning(
                "malformed records were not written to the dead-letter topic",
                topic=self.topic,
                batch=batch_id,
                offsets=offsets,
                error=_cause(error),
            )
        else:
            self.metrics.dead_letters_written(count)

    def _count_malformed(self) -> int | None:
        """Read the running batch's observation; None when Spark does not tell."""
        try:
            query: Any = next(
                query for query in self.session.streams.active if query.name == self.query_name
            )
            # Python has no way to a batch that is not finished yet; its progress comes later.
            execution = query._jsq.streamingQuery().lastExecution()  # noqa: SLF001 - see above
            observed = execution.observedMetrics().get(OBSERVED_INPUT)
            return int(observed.get().get(0) or 0) if observed.isDefined() else None
        except Exception:  # noqa: BLE001 - internals of Spark: read the batch again instead
            return None

    def _read(
        self, begin: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
    ) -> DataFrame:
        partitions: dict[str, list[int]] = {}
        for topic, partition in end:
            partitions.setdefault(topic, []).append(partition)
        return (
            self.session.read.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap_servers)
            .option("assign", json.dumps(partitions))
            .option("startingOffsets", format_offsets({at: begin.get(at, EARLIEST) for at in end}))
            .option("endingOffsets", format_offsets(end))
            .option("includeHeaders", "true")
            # What retention took meanwhile cannot be set aside any more.
            .option("failOnDataLoss", "false")
            .load()
        )

    def _write(self, records: DataFrame) -> int:
        letters = as_dead_letters(self.rejected(records), self.job).persist()
        try:
            count = letters.count()
            (
                letters.write.format("kafka")
                .option("kafka.bootstrap.servers", self.bootstrap_servers)
                .option("kafka.acks", "all")
                .option("kafka.delivery.timeout.ms", str(DELIVERY_TIMEOUT_MS))
                .option("kafka.request.timeout.ms", str(DELIVERY_TIMEOUT_MS // 2))
                .option("kafka.max.block.ms", str(DELIVERY_TIMEOUT_MS))
                .option("topic", self.topic)
                .save()
            )
        finally:
            letters.unpersist()
        return count


def _cause(error: Exception) -> str:
    """Return the innermost cause of a Java stack, or the first line of what Python says."""
    lines = str(error).splitlines()
    causes = [line for line in lines if line.startswith("Caused by: ")]
    return (causes[-1:] or lines or [repr(error)])[0].removeprefix("Caused by: ")[:300]


def as_dead_letters(rejected: DataFrame, job: str) -> DataFrame:
    """Return `key, value, headers` of records with a `reason`."""
    added = {
        "headrace.topic": F.col("topic"),
        "headrace.partition": F.col("partition").cast("string"),
        "headrace.offset": F.col("offset").cast("string"),
        "headrace.reason": F.col("reason"),
        "headrace.job": F.lit(job),
    }
    headers = F.array(
        *(
            F.struct(F.lit(name).alias("key"), text.cast("binary").alias("value"))
            for name, text in added.items()
        )
    )
    return rejected.select(
        "key",
        "value",
        F.when(F.col("headers").isNull(), headers)
        .otherwise(F.concat("headers", headers))
        .alias("headers"),
    )
