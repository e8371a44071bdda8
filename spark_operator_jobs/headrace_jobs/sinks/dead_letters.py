"""Writes records that are in no result to a separate topic, unchanged.

They leave the query with its results (`transforms.tagged`) and are written before their batch is
committed: at least once. A batch without any costs nothing. If the topic does not accept them, that
is counted and logged with the records' offsets, and the job continues: bad input never stops good
input.

Key, value and headers of a record are untouched; these headers are added: `headrace.topic`,
`headrace.partition`, `headrace.offset`, `headrace.reason`, `headrace.job`, and for a late one
`headrace.watermark`, the one that it missed, in ISO 8601.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

from headrace_jobs.progress.offsets import TopicPartition, format_offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from headrace_jobs.progress.metrics import JobMetrics

__all__ = ["DeadLetters", "as_dead_letters"]

# Kafka's two minutes would delay the good records of the batch.
DELIVERY_TIMEOUT_MS = 20_000

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class DeadLetters:
    """The dead-letter topic of one query."""

    bootstrap_servers: str
    topic: str
    job: str

    def write(self, rejected: DataFrame, batch_id: int, metrics: JobMetrics) -> None:
        """Write a batch's records that are in no result (`tagged.rejected`)."""
        found = (
            rejected.groupBy("topic", "partition")
            .agg(F.min("offset"), F.max("offset"), F.count("offset"))
            .collect()
        )
        # In the order of the log: groups of keys are computed in any order.
        ordered = rejected.coalesce(1).sortWithinPartitions("topic", "partition", "offset")
        try:
            (
                as_dead_letters(ordered, self.job)
                .write.format("kafka")
                .option("kafka.bootstrap.servers", self.bootstrap_servers)
                .option("kafka.acks", "all")
                .option("kafka.delivery.timeout.ms", str(DELIVERY_TIMEOUT_MS))
                .option("kafka.request.timeout.ms", str(DELIVERY_TIMEOUT_MS // 2))
                .option("kafka.max.block.ms", str(DELIVERY_TIMEOUT_MS))
                .option("topic", self.topic)
                .save()
            )
        except (PySparkException, Py4JJavaError, OSError, ValueError) as error:
            metrics.dead_letters_failed()
            begin, end = (
                format_offsets({TopicPartition(row[0], row[1]): row[index] for row in found})
                for index in (2, 3)
            )
            _log.warning(
                "late and malformed records were not written to the dead-letter topic",
                topic=self.topic,
                batch=batch_id,
                offsets=f"{begin} to {end}",
                error=_cause(error),
            )
        else:
            metrics.dead_letters_written(sum(row[4] for row in found))


def _cause(error: Exception) -> str:
    """Return the innermost cause of a Java stack, or the first line of a Python error."""
    lines = str(error).splitlines()
    causes = [line for line in lines if line.startswith("Caused by: ")]
    return (causes[-1:] or lines or [repr(error)])[0].removeprefix("Caused by: ")[:300]


def as_dead_letters(rejected: DataFrame, job: str) -> DataFrame:
    """Return `key, value, headers` of records with a `reason`."""
    watermark = F.date_format("watermark", "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX")
    added = {
        "headrace.topic": F.col("topic"),
        "headrace.partition": F.col("partition").cast("string"),
        "headrace.offset": F.col("offset").cast("string"),
        "headrace.reason": F.col("reason"),
        "headrace.job": F.lit(job),
        "headrace.watermark": watermark,
    }
    headers = F.array(
        *(
            F.struct(F.lit(name).alias("key"), text.cast("binary").alias("value"))
            for name, text in added.items()
        )
    )
    known = F.filter(headers, lambda header: header["value"].isNotNull())
    own = F.coalesce("headers", F.slice(headers, 1, 0))
    return rejected.select("key", "value", F.concat(own, known).alias("headers"))
