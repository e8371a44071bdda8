"""A job that passes every record on once, so that a table without a key shows each repetition."""

import os

from headrace_jobs.declaration import Delivery, Job, Topic
from headrace_jobs.sinks.postgres import PostgresTable


def positions(records):
    """Return `at, position`: the partition and offset of each record."""
    from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

    return records.select(
        F.col("partition").alias("at"), F.col("offset").alias("position"), "timestamp"
    )


def windows(records):
    """Return `at, records`: how many each partition had, which needs state."""
    from pyspark.sql import functions as F  # noqa: N812 - as above

    counted = records.groupBy(F.col("partition").alias("at")).count()
    return counted.withColumnRenamed("count", "position")


IS_STATEFUL = os.environ.get("COUNTED_STATEFUL") == "1"
JOB = Job(
    name="counted",
    sources=(Topic(),),
    transform=windows if IS_STATEFUL else positions,
    output_mode="update" if IS_STATEFUL else "append",
    sinks=(
        PostgresTable(
            table=os.environ["COUNTED_TABLE"],
            dsn=os.environ["COUNTED_DSN"],
            key=("at",) if IS_STATEFUL else (),
        ),
    ),
    delivery=Delivery.EXACTLY_ONCE,
)
