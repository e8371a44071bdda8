"""What is known of a query's state before it starts, and said when a checkpoint is another's."""

import json

import pytest

from headrace_jobs.jobs.runner import explained
from headrace_jobs.jobs.stateful import has_sparks_watermark, is_stateful, unbounded_joins
from headrace_jobs.transforms.cpu_load import live_usage_windows

pytestmark = pytest.mark.spark

HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
RECORD = "topic STRING, partition INT, offset LONG, key BINARY, value BINARY, timestamp TIMESTAMP"


def stream(spark, name, *, has_watermark=True):
    rate = spark.readStream.format("rate").load()
    renamed = rate.selectExpr(f"value AS {name}_id", f"timestamp AS {name}_at")
    return renamed.withWatermark(f"{name}_at", "10 seconds") if has_watermark else renamed


def test_a_join_of_streams_without_a_bound_on_its_state_is_reported(spark):
    sales, shipments = stream(spark, "sale"), stream(spark, "shipment")
    ids = "sale_id = shipment_id"
    hour = "shipment_at BETWEEN sale_at - INTERVAL 1 HOUR AND sale_at"
    from pyspark.sql.functions import expr

    assert unbounded_joins(sales.join(shipments, expr(f"{ids} AND {hour}"))) == []
    assert unbounded_joins(sales.join(shipments, expr(ids)).where(hour)) == []
    (told,) = unbounded_joins(sales.join(shipments, expr(ids)).select("sale_id"))
    assert "shipment_id" in told
    one_side = sales.join(shipments, expr(f"{ids} AND shipment_at <= sale_at"))
    assert len(unbounded_joins(one_side)) == 1
    bare = stream(spark, "shipment", has_watermark=False)
    assert len(unbounded_joins(sales.join(bare, expr(f"{ids} AND {hour}")))) == 1
    table = spark.range(3).withColumnRenamed("id", "shipment_id")
    joined = sales.join(table, expr(ids))
    assert unbounded_joins(joined) == []
    assert not is_stateful(joined)
    assert is_stateful(sales.join(shipments, expr(f"{ids} AND {hour}")))


def test_sparks_own_watermark_is_seen_and_ours_is_none(spark):
    counted = stream(spark, "sale").groupBy("sale_at").count()
    assert has_sparks_watermark(counted)
    assert not has_sparks_watermark(stream(spark, "sale", has_watermark=False))
    records = spark.readStream.format("rate").load().selectExpr(
        "'t' AS topic", "0 AS partition", "value AS offset", "CAST(NULL AS BINARY) AS key",
        "CAST(CAST(value AS STRING) AS BINARY) AS value", "timestamp",
    )  # fmt: skip
    assert not has_sparks_watermark(live_usage_windows(records, window_ms=1, watermark_ms=1))


def test_a_checkpoint_of_the_program_before_says_what_to_do(spark, tmp_path):
    (tmp_path / "in").mkdir()
    at = "2026-01-31T12:00:00Z"
    reading = {"hostname": "h", "cpu": 0, "usage": 1.0, "occurred_at": at}
    row = {"topic": "t", "partition": 0, "offset": 0, "value": json.dumps(reading)}

    def run(transform, number):
        (tmp_path / "in" / f"{number}.json").write_text(json.dumps(row | {"offset": number}))
        source = spark.readStream.schema(RECORD).json(str(tmp_path / "in"))
        query = (
            transform(source)
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .foreachBatch(lambda batch, _: batch.count())
            .outputMode("update")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def counted(records):
        return records.groupBy("partition").count()

    provider = spark.conf.get(PROVIDER)
    spark.conf.set(PROVIDER, HDFS)
    try:
        run(counted, 1)
    finally:
        spark.conf.set(PROVIDER, provider)
    with pytest.raises(Exception, match=r"STATE|STORE|state") as raised:
        run(lambda records: live_usage_windows(records, window_ms=1, watermark_ms=1), 2)
    assert "Begin a new generation" in explained(raised.value)
    assert "Begin a new generation" not in explained(ValueError("a broken disk"))
