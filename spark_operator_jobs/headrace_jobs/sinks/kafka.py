"""Results into a topic, as JSON.

Delivery is at least once. Spark's Kafka sink has no transactions: a batch that was written but not
yet in the checkpoint when the driver died is written again, with the same keys and values. A reader
that must not count twice keeps the newest record for each key and window (`window_start` is part of
the value, and results are the same on every replay of the batch).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["KafkaSink", "as_json_records"]


@dataclass(frozen=True, kw_only=True)
class KafkaSink:
    """A topic to write to; `key_columns` become the record key, joined by `/`."""

    bootstrap_servers: str
    topic: str
    key_columns: tuple[str, ...]

    def write(self, batch: DataFrame, batch_id: int) -> None:  # noqa: ARG002 - every sink's shape
        """Append the batch; every record is acknowledged by all in-sync replicas on return."""
        (
            as_json_records(batch, self.key_columns)
            .write.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap_servers)
            .option("kafka.acks", "all")
            .option("topic", self.topic)
            .save()
        )


def as_json_records(results: DataFrame, key_columns: tuple[str, ...]) -> DataFrame:
    """Return `key, value`: the key columns joined by `/`, and all columns as a JSON object.

    Null columns stay in the object, and timestamps are ISO 8601 in the session's time zone.
    """
    return results.select(
        F.concat_ws("/", *(F.col(name).cast("string") for name in key_columns)).alias("key"),
        F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("value"),
    )
