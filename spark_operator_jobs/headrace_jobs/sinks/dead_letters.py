"""Writes records that are in no result to a separate topic, unchanged.

So it does a result that a sink could never take, as JSON: of one record, with that record's place.

They leave the query with its results (`transforms.tagged`) and are written before their batch is
committed: at least once. A batch without any costs nothing. If the topic does not accept them, that
is counted and logged with the records' offsets, and the job continues: bad input never stops good
input.

Key, value and headers of a record are untouched; these headers are added: `headrace.topic`,
`headrace.partition`, `headrace.offset`, `headrace.reason`, `headrace.job`, and for a late one
`headrace.watermark`, the one that it missed, in ISO 8601. Of a record that is too large for the
topic with these the value is cut, after a key and headers that take much of the room;
`headrace.original-bytes` says how large it was.
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
    from pyspark.sql import Column, DataFrame

    from headrace_jobs.progress.metrics import JobMetrics

__all__ = ["DeadLetters", "as_dead_letters"]

# Kafka's two minutes would delay the good records of the batch.
DELIVERY_TIMEOUT_MS = 20_000
# Kafka's default of `max.message.bytes`, and of a producer's `max.request.size`.
RECORD_BYTES_MAX = 1_048_588
_REQUEST_BYTES_MAX = 1_048_576
# A producer keeps 32 MiB in memory.
_CUT_BYTES_MAX = 16 * 1024 * 1024
# More than the headers of a batch and a record, and the lengths of a record's header.
_FRAME_BYTES = 200
_HEADER_BYTES = 10
_ADDED_BYTES = 1_500

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class DeadLetters:
    """The dead-letter topic of one query."""

    bootstrap_servers: str
    topic: str
    job: str
    #: The topic's `max.message.bytes`.
    record_bytes_max: int

    def write(self, rejected: DataFrame, batch_id: int, metrics: JobMetrics) -> None:
        """Write a batch's records that are in no result (`tagged.rejected`)."""
        found = (
            rejected.groupBy("topic", "partition")
            .agg(F.min("offset"), F.max("offset"), F.count(F.lit(1)))
            .collect()
        )
        # In the order of the log: groups of keys are computed in any order.
        ordered = rejected.coalesce(1).sortWithinPartitions("topic", "partition", "offset")
        bytes_max = min(self.record_bytes_max, _CUT_BYTES_MAX)
        try:
            (
                as_dead_letters(ordered, self.job, bytes_max)
                .write.format("kafka")
                .option("kafka.bootstrap.servers", self.bootstrap_servers)
                .option("kafka.acks", "all")
                .option("kafka.max.request.size", str(max(bytes_max, _REQUEST_BYTES_MAX)))
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


def as_dead_letters(rejected: DataFrame, job: str, bytes_max: int = RECORD_BYTES_MAX) -> DataFrame:
    """Return `key, value, headers` of records with a `reason`, each of `bytes_max` at most."""
    watermark = F.date_format("watermark", "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX")
    added = {
        "headrace.topic": F.col("topic"),
        "headrace.partition": F.col("partition").cast("string"),
        "headrace.offset": F.col("offset").cast("string"),
        "headrace.reason": F.col("reason"),
        "headrace.job": F.lit(job),
        "headrace.watermark": watermark,
        "headrace.original-bytes": F.when(_is_large(bytes_max), _size()).cast("string"),
    }
    headers = F.array(
        *(
            F.struct(F.lit(name).alias("key"), text.cast("binary").alias("value"))
            for name, text in added.items()
        )
    )
    known = F.filter(headers, lambda header: header["value"].isNotNull())
    own = F.coalesce("headers", F.slice(headers, 1, 0))
    # Key and headers stay where the value still has half of the room.
    is_kept = [~_is_large(bytes_max) | (size <= bytes_max // 4) for size in _sizes()[:2]]
    key = F.when(is_kept[0], F.col("key"))
    kept = F.when(is_kept[1], own).otherwise(F.slice(own, 1, 0))
    rest = bytes_max - _FRAME_BYTES - _bytes(key) - _header_bytes(F.concat(kept, known))
    value = F.when(_is_large(bytes_max), F.substring("value", F.lit(1), rest)).otherwise(
        F.col("value")
    )
    return rejected.select(
        key.alias("key"), value.alias("value"), F.concat(kept, known).alias("headers")
    )


def _is_large(bytes_max: int) -> Column:
    # The added headers are short: names of a topic and a job, numbers, a time and a reason.
    return _size() > bytes_max - _FRAME_BYTES - _ADDED_BYTES


def _size() -> Column:
    key, headers, value = _sizes()
    return key + headers + value


def _sizes() -> tuple[Column, Column, Column]:
    return _bytes(F.col("key")), _header_bytes(F.col("headers")), _bytes(F.col("value"))


def _bytes(column: Column) -> Column:
    return F.coalesce(F.octet_length(column), F.lit(0))


def _header_bytes(headers: Column) -> Column:
    def add(size: Column, header: Column) -> Column:
        return size + _HEADER_BYTES + _bytes(header["key"]) + _bytes(header["value"])

    return F.coalesce(F.aggregate(headers, F.lit(0), add), F.lit(0))
