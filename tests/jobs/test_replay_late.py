"""What `headrace jobs replay-late` refuses. What it does: test_no_reading_is_lost."""

import dataclasses

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

from headrace_jobs.jobs import cpu_load, retail
from headrace_jobs.jobs.declared import parse_declared
from headrace_jobs.jobs.replay_late import _of_keys, _say_unfit, main, replay_late
from headrace_jobs.jobs.startup import JobError
from support.processes import LOOPBACK, free_port

COMMON = ("--checkpoint", "/nowhere", "--bootstrap-servers")
TOPICS = ("--input-topic", "in", "--output-topic", "out")


def replay(job, *more):
    replay_late(*parse_declared(job, [*COMMON, f"{LOOPBACK}:{free_port()}", *more]))


def test_a_job_that_does_not_tell_its_results_apart_is_refused_with_the_other_way():
    with pytest.raises(JobError, match="Begin a new generation"):
        replay(retail.JOB, "--dead-letter-topic", "dead")
    unnamed = dataclasses.replace(cpu_load.JOB, result_key=())
    with pytest.raises(JobError, match="result_key"):
        replay(unnamed, *TOPICS, "--dead-letter-topic", "dead")


def test_it_wants_to_know_where_late_records_are():
    with pytest.raises(JobError, match="give --dead-letter-topic"):
        replay(cpu_load.JOB, *TOPICS)


def test_brokers_that_are_not_there_are_named():
    with pytest.raises(JobError, match=r"no broker answers at 127\.0\.0\.1"):
        replay(cpu_load.JOB, *TOPICS, "--dead-letter-topic", "dead")


def test_a_module_is_needed(capsys):
    assert main([]) == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.spark
def test_a_result_whose_key_is_null_is_corrected_like_any_other(spark):
    results = spark.createDataFrame(
        [("a", 1, 10), (None, 1, 20), (None, 2, 30), ("b", 1, 40)], "host STRING, cpu INT, v INT"
    )
    touched = results.where("v IN (10, 20)").union(results.where("v = 20"))
    found = _of_keys(results, touched, ("host", "cpu"))
    assert found.columns == results.columns
    assert sorted(row["v"] for row in found.collect()) == [10, 20]


@pytest.mark.spark
def test_results_that_a_sink_can_never_take_are_counted_with_the_reason(spark, capsys):
    results = spark.createDataFrame([("a",), (None,), (None,)], "k STRING")
    _say_unfit("table t", results, F.when(F.col("k").isNull(), "k is null"))
    told = capsys.readouterr()
    assert "k is null" in told.out + told.err
    assert "table t" in told.out + told.err
    _say_unfit("table t", results.where("k = 'a'"), F.when(F.col("k").isNull(), "k is null"))
    assert capsys.readouterr() == ("", "")
