"""A batch's records on their way through the driver, which has room for a piece of them."""

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

from headrace_jobs.sinks import kafka_pieces

pytestmark = pytest.mark.spark


@pytest.fixture
def records(spark):
    """A function that returns a persisted frame of `key, value` with so many rows."""
    made = []

    def make(count, partitions, value_bytes):
        hashes = F.expr(
            f"array_join(transform(sequence(1, {value_bytes // 64}), each ->"
            " sha2(concat(id, each), 256)), '')"
        )
        frame = spark.range(0, count, 1, partitions).select(
            F.when(F.col("id") % 3 > 0, F.col("id").cast("string").cast("binary")).alias("key"),
            F.when(F.col("id") % 5 > 0, hashes.cast("binary")).alias("value"),
        )
        made.append(frame.persist())
        return made[-1]

    yield make
    for frame in made:
        frame.unpersist()


@pytest.fixture
def result_bytes_max(spark):
    """A function that limits what the driver takes as the results of one job."""
    name, conf = "spark.driver.maxResultSize", spark.sparkContext._jsc.sc().conf()
    before = conf.get(name, "1g")
    yield lambda size: conf.set(name, str(size))
    conf.set(name, before)


def rows(batches):
    return [(row["key"], row["value"]) for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("piece_bytes", "whole_bytes"), [(1, 1), (20_000, 1), (10_000_000, 1), (1, None)]
)
def test_every_record_comes_once_and_in_order_whatever_a_piece_has(
    spark, records, piece_bytes, whole_bytes
):
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        frame = records(1_000, 3, 64)
        batches = kafka_pieces.arrow_batches(
            frame, piece_bytes=piece_bytes, whole_bytes=whole_bytes
        )
        found = rows(batches)
        assert found == rows(frame.toArrow().to_batches())
        assert list(kafka_pieces.arrow_batches(frame.limit(0), piece_bytes=piece_bytes)) == []
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_a_batch_that_is_larger_than_the_driver_takes_comes_in_pieces(records, result_bytes_max):
    frame = records(50_000, 1, 1_024)
    frame.count()
    result_bytes_max(kafka_pieces.PIECE_BYTES * 2)
    with pytest.raises(Py4JJavaError, match="maxResultSize"):
        frame.toArrow()
    count = sum(len(batch) for batch in kafka_pieces.arrow_batches(frame))
    assert count == 50_000


def test_rows_that_were_computed_again_in_another_order_are_not_taken(spark, records):
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        # As if the executor with the rows was lost: the digest is of other ones.
        task = kafka_pieces._pieces(20_000, 0, 2, 1)
        with pytest.raises(PySparkException, match="in another order"):
            records(1_000, 1, 64).mapInArrow(task, kafka_pieces._PIECE).collect()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
