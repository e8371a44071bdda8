"""What results look like on the terminal and in a topic."""

import io
import json

import pytest

from headrace_jobs.progress.stored import Batch
from headrace_jobs.sinks.console import ConsoleSink, format_table
from headrace_jobs.sinks.kafka import KafkaSink, as_json_records


def test_a_table_has_numbers_to_the_right_and_a_dash_for_nothing():
    table = format_table(["host", "usage"], [("web-1", 9.04), (None, 10.0)])
    assert table.splitlines() == ["host   usage", "web-1    9.0", "-       10.0"]


@pytest.mark.spark
def test_the_terminal_shows_no_more_than_its_maximum_and_nothing_for_an_empty_batch(spark):
    output = io.StringIO()
    sink = ConsoleSink(rows_max=2, output=output)
    sink.write(spark.range(0), Batch(batch_id=1))
    assert output.getvalue() == ""
    sink.write(spark.range(3).coalesce(1), Batch(batch_id=2))
    assert output.getvalue() == "batch 2\nid\n 0\n 1\n(more rows not shown)\n"


class BrokenOutput(io.StringIO):
    """A standard output whose reader is gone."""

    def write(self, _text):
        raise BrokenPipeError("Broken pipe")


@pytest.mark.spark
def test_a_broken_standard_output_fails_no_batch_that_the_topic_has(spark):
    sink = ConsoleSink(output=BrokenOutput())
    sink.write(spark.range(1), Batch(batch_id=1))
    sink.write(spark.range(1), Batch(batch_id=2))


@pytest.mark.spark
def test_what_a_terminal_cannot_show_fails_no_batch_that_the_topic_has(spark):
    output = io.StringIO()
    sink = ConsoleSink(output=output)
    sink.write(spark.sql("SELECT timestamp_seconds(300000000000) AS at"), Batch(batch_id=1))
    assert output.getvalue() == ""
    sink.write(spark.range(1), Batch(batch_id=2))
    assert output.getvalue() == "batch 2\nid\n 0\n"


@pytest.mark.spark
def test_a_record_has_its_key_columns_and_a_json_value_with_nulls_kept(spark):
    frame = spark.createDataFrame([("web-1", 3, None)], "hostname STRING, cpu INT, usage DOUBLE")
    (record,) = as_json_records(frame, ("hostname", "cpu")).collect()
    assert record.key == "web-1/3"
    assert json.loads(record.value) == {"hostname": "web-1", "cpu": 3, "usage": None}


@pytest.mark.spark
def test_an_integer_in_a_number_column_is_a_number_and_a_name_stays_a_text(spark):
    texts = ["0", "17", "007", "total", "true", None]
    frame = spark.createDataFrame([("h", text) for text in texts], "host STRING, cpu STRING")
    sink = KafkaSink(key_columns=("host", "cpu"), number_columns=("cpu",))
    records = sink.as_records(frame).collect()
    assert [json.loads(record.value)["cpu"] for record in records] == [0, 17, *texts[2:]]
    assert [record.key for record in records[:3]] == ["h/0", "h/17", "h/007"]
