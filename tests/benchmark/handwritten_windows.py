"""The windows of `cpu-load` as one would write them by hand: what our job is compared with.

All that is there, or, with an interval between batches, what comes from now on.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

bootstrap, source, target, checkpoint, *interval = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
readings = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", source)
    .option("startingOffsets", "latest" if interval else "earliest")
    .option("maxOffsetsPerTrigger", "500000")
    .option("kafka.max.poll.records", "20000")
    .load()
    .select(
        F.from_json(
            F.col("value").cast("string"),
            "hostname STRING, cpu INT, usage DOUBLE, occurred_at LONG",
        ).alias("r")
    )
    .select("r.hostname", "r.cpu", "r.usage", F.timestamp_millis("r.occurred_at").alias("at"))
)
windows = (
    readings.withWatermark("at", "10 seconds")
    .groupBy(F.window("at", "10 seconds"), "hostname", "cpu")
    .agg(F.avg("usage").alias("usage_avg"), F.max("usage").alias("usage_max"), F.count("usage"))
    .select(
        F.col("window.start").alias("window_start"),
        F.col("window.end").alias("window_end"),
        *("hostname", "cpu", "usage_avg", "usage_max"),
        F.col("count(usage)").alias("readings"),
    )
)


def write(batch, _batch_id):
    (
        batch.select(
            F.concat_ws("/", "hostname", F.col("cpu").cast("string")).alias("key"),
            F.to_json(F.struct("*")).alias("value"),
        )
        .write.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("kafka.acks", "all")
        .option("topic", target)
        .save()
    )


query = windows.writeStream.option("checkpointLocation", checkpoint).foreachBatch(write)
trigger = {"processingTime": interval[0]} if interval else {"availableNow": True}
query.trigger(**trigger).start().awaitTermination()
spark.stop()
