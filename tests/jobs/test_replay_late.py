"""What `headrace jobs replay-late` refuses. What it does: test_no_reading_is_lost."""

import dataclasses

import pytest

from headrace_jobs.jobs import cpu_load, retail
from headrace_jobs.jobs.declared import parse_declared
from headrace_jobs.jobs.replay_late import main, replay_late
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
