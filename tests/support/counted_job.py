"""A job that passes every record on once, so that a table without a key shows each repetition.

`COUNTED_KIND` is the sink's (`postgres` by default), `COUNTED_TABLE` its table, folder, index or
topic, and `COUNTED_DSN` where its server is. An index has documents by key: there each position
replaces the one `COUNTED_SLOTS` before it, so that what an older batch wrote shows.
"""

import os

from headrace_jobs.declaration import Delivery, Job, Topic
from headrace_jobs.sinks.files import FileTable
from headrace_jobs.sinks.kafka import KafkaSink
from headrace_jobs.sinks.postgres import PostgresTable
from headrace_jobs.sinks.search import SearchIndex

SLOTS = int(os.environ.get("COUNTED_SLOTS", "1"))


def positions(records):
    """Return `at, position`: the partition and offset of each record."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

    found = records.select(
        F.col("partition").alias("at"), F.col("offset").alias("position"), "timestamp"
    )
    return found.withColumn("slot", F.col("position") % SLOTS) if KIND == "search" else found


def windows(records):
    """Return `at, records`: how many each partition had, which needs state."""
    from pyspark.sql import functions as F  # noqa: N812 - as above

    counted = records.groupBy(F.col("partition").alias("at")).count()
    return counted.withColumnRenamed("count", "position")


def sink(table, server):
    """Return the sink of `COUNTED_KIND`."""
    if KIND == "postgres":
        return PostgresTable(table=table, dsn=server, key=("at",) if IS_STATEFUL else ())
    if KIND == "search":
        return SearchIndex(index=table, hosts=server, key=("at", "slot"))
    if KIND == "kafka":
        return KafkaSink(topic=table, key_columns=("at", "position"))
    # Each batch compacts.
    return FileTable(path=table, form=KIND, compact_after=2)


KIND = os.environ.get("COUNTED_KIND", "postgres")
IS_STATEFUL = os.environ.get("COUNTED_STATEFUL") == "1"
JOB = Job(
    name="counted",
    sources=(Topic(),),
    transform=windows if IS_STATEFUL else positions,
    output_mode="update" if IS_STATEFUL else "append",
    sinks=(sink(os.environ["COUNTED_TABLE"], os.environ["COUNTED_DSN"]),),
    delivery=Delivery.EXACTLY_ONCE,
)
