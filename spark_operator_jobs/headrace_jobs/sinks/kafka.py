"""Writes results to a topic, as JSON.

Delivery is at least once by default. Spark's Kafka sink has no transactions: a batch that was
written but is not in the checkpoint when the driver dies is written again, with the same keys and
values. A reader that must not count twice keeps the newest record for each key and window
(`window_start` is part of the value, and every replay of the batch gives the same results).

With at most once, no batch is begun twice (the checkpoint records it), and a failed task is not
retried. With exactly once, `kafka_transactions` is used instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace_jobs.delivery import Delivery
from headrace_jobs.sinks.kafka_transactions import RECORD_BYTES_MAX, TransactionalWriter
from headrace_jobs.sinks.protocol import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import Column, DataFrame

    from headrace_jobs.progress.stored import Batch
    from headrace_jobs.sinks.protocol import Run

__all__ = ["KafkaSink", "as_json_records"]

# The default of a producer's `max.request.size`.
_REQUEST_BYTES_MAX = 1_048_576
# As JSON writes one, within 64 bits.
_INTEGER = r"^(0|[1-9]\d{0,17})\z"
# A null in a record key, and the texts that become one by escaping, or are one.
_NULL = "%00"
_LIKE_NULL = r"^%(25)*00$"


@dataclass(frozen=True, kw_only=True)
class KafkaSink:
    """A topic to write to; `key_columns` become the record key, joined by `/` if several.

    `value_column` is the record's unchanged value; without it the value is all columns as JSON.
    Integer texts in `number_columns` become numbers: `"0"` is `0`, `"total"` stays. Without a name,
    `--output-topic` gives it.
    """

    key_columns: tuple[str, ...]
    topic: str | None = None
    value_column: str | None = None
    number_columns: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return `topic NAME`."""
        return f"topic {self.topic}" if self.topic else "the output topic"

    def refusal(self, delivery: Delivery, output_mode: str) -> str | None:  # noqa: ARG002 - every delivery holds
        """Return None: a topic supports every delivery."""
        return None

    def open(self, run: Run) -> KafkaWriter | TransactionalWriter:
        """Return the writer. With exactly once this connects and fences the previous driver."""
        topic = run.output_topic or self.topic
        if topic is None:
            raise SinkError("the output topic has no name: give --output-topic")
        bytes_max = _record_bytes_max(run, topic)
        if run.delivery is Delivery.EXACTLY_ONCE:
            return TransactionalWriter(run, topic, self.as_records, record_bytes_max=bytes_max)
        return KafkaWriter(
            bootstrap_servers=run.bootstrap_servers,
            topic=topic,
            as_records=self.as_records,
            delivery=run.delivery,
            record_bytes_max=bytes_max,
        )

    def as_records(self, results: DataFrame) -> DataFrame:
        """Return `key, value` of results."""
        from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

        for name in self.number_columns:
            text = F.col(name)
            number = F.when(text.rlike(_INTEGER), F.parse_json(text))
            results = results.withColumn(name, number.otherwise(text.cast("variant")))
        return as_json_records(results, self.key_columns, self.value_column)


@dataclass(frozen=True, kw_only=True)
class KafkaWriter:
    """A topic written by Spark's own Kafka sink."""

    bootstrap_servers: str
    topic: str
    as_records: Callable[[DataFrame], DataFrame]
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    #: The topic's `max.message.bytes`.
    record_bytes_max: int = RECORD_BYTES_MAX

    @property
    def keeps_progress(self) -> bool:
        """Return False: Spark's Kafka sink cannot store it."""
        return False

    def unfit(self, frame: DataFrame) -> Column | None:  # noqa: ARG002 - every sink's shape
        """Return None: a record's key and value are bytes."""
        return None

    def write(self, frame: DataFrame, batch: Batch) -> None:  # noqa: ARG002 - every sink's shape
        """Append the batch; every record is acknowledged by all in-sync replicas on return."""
        records = self.as_records(frame)
        if self.delivery is Delivery.AT_MOST_ONCE:
            records = records.mapInArrow(_of_first_attempts, records.schema)
        (
            records.write.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap_servers)
            .option("kafka.acks", "all")
            # Otherwise the client's own limit holds, however much the topic takes.
            .option("kafka.max.request.size", str(max(self.record_bytes_max, _REQUEST_BYTES_MAX)))
            .option("topic", self.topic)
            .save()
        )

    def close(self) -> None:
        """Do nothing: Spark's executors own the producers."""


def _record_bytes_max(run: Run, topic: str) -> int:
    """Return the topic's `max.message.bytes`; Kafka's default if the broker does not tell."""
    from kafka.errors import KafkaError

    from headrace_jobs.progress.group import GroupClient

    client = GroupClient(run.bootstrap_servers, client_id=run.job)
    try:
        return client.max_message_bytes(topic)
    except (KafkaError, OSError, KeyError, ValueError):
        return RECORD_BYTES_MAX
    finally:
        client.close()


def _of_first_attempts(batches: Iterable[Any]) -> Iterator[Any]:
    """Pass rows on, except in a retried task: its first attempt may have sent some."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None or context.attemptNumber() == 0:
        yield from batches


def as_json_records(
    results: DataFrame, key_columns: tuple[str, ...], value_column: str | None = None
) -> DataFrame:
    """Return `key, value`: the key columns joined by `/`, and all columns as a JSON object.

    In several key columns `/` is written `%2F`, and `%` as `%25`, so `a/b` and `c` differ from `a`
    and `b/c`. A null is `%00`. A single column is the key unchanged, unless it reads like a null.
    Null columns stay in the object, and timestamps are ISO 8601 to the microsecond (`as_json`).
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

    from headrace_jobs.transforms.json_text import as_json

    texts = [F.col(name).cast("string") for name in key_columns]
    if len(texts) > 1:
        texts = [
            F.replace(F.replace(text, F.lit("%"), F.lit("%25")), F.lit("/"), F.lit("%2F"))
            for text in texts
        ]
    else:
        texts = [
            F.when(text.rlike(_LIKE_NULL), F.replace(text, F.lit("%"), F.lit("%25"))).otherwise(
                text
            )
            for text in texts
        ]
    texts = [F.coalesce(text, F.lit(_NULL)) for text in texts]
    everything = as_json(F.struct("*"), with_nulls=True)
    return results.select(
        F.concat_ws("/", *texts).alias("key"),
        (F.col(value_column) if value_column else everything).alias("value"),
    )
