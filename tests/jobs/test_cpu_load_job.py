"""The whole job as `headrace up` runs it: the example's manifest, a real broker, restarts."""

import json
import signal
import subprocess
import sys
import time
import uuid
from datetime import datetime, timedelta

import psutil
import pytest
import yaml
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaAdminClient

from headrace_operator.apply import apply_actions
from headrace_operator.plan import ResetOffsets
from support.jobs import JobProcess
from support.processes import ManagedProcess, free_port, wait_until

NOON = datetime.fromisoformat("2026-01-31T12:00:00+00:00")
STEP_SECONDS = 90


def produce_readings(bootstrap, topic, seconds, *, garbage=0):
    """One reading a second for each of two CPUs; the usage is the second."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for second in seconds:
        for cpu in range(2):
            at = (NOON + timedelta(seconds=second)).isoformat()
            record = {"hostname": "web", "cpu": cpu, "usage": float(second), "occurred_at": at}
            producer.produce(topic, json.dumps(record), key=f"web/{cpu}")
    for _ in range(garbage):
        producer.produce(topic, "garbage")
    assert producer.flush(30) == 0


def read_windows(bootstrap, topic):
    """Everything in the output topic as (seconds after noon, key, average, readings), sorted."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reader-{uuid.uuid4().hex[:8]}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe([topic])
    found, partitions_done = [], 0
    while partitions_done < 2:
        record = consumer.poll(30)
        assert record is not None, "no answer from the output topic"
        if record.error():
            partitions_done += 1
            continue
        window = json.loads(record.value())
        start = datetime.fromisoformat(window["window_start"]) - NOON
        found.append(
            (start.seconds, record.key().decode(), window["usage_avg"], window["readings"])
        )
    consumer.close()
    return sorted(found)


@pytest.fixture
def application(example_application):
    """The example with names of its own and quicker batches."""
    document = yaml.safe_load(example_application.read_text())
    unique = uuid.uuid4().hex[:8]
    arguments = document["spec"]["arguments"]
    for flag, value in {
        "--input-topic": f"in-{unique}",
        "--output-topic": f"out-{unique}",
        "--group": f"job-{unique}",
        "--trigger": "500ms",
    }.items():
        arguments[arguments.index(flag) + 1] = value
    document["spec"]["driver"]["memory"] = "512m"
    return document


@pytest.fixture
def job(application, broker, tmp_path):
    found = JobProcess(tmp_path, application, broker.bootstrap)
    yield found
    found.close()


def argument(application, flag):
    arguments = application["spec"]["arguments"]
    return arguments[arguments.index(flag) + 1]


def descendants(pid):
    return psutil.Process(pid).children(recursive=True)


@pytest.mark.spark
@pytest.mark.slow
def test_the_job_computes_reports_stops_cleanly_and_goes_on_where_it_stopped(
    job, application, broker, group_offsets
):
    source, sink = argument(application, "--input-topic"), argument(application, "--output-topic")
    group = argument(application, "--group")
    job.start()
    wait_until(lambda: "does not exist" in job.output, STEP_SECONDS, "a word on the missing topics")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic(source, 1, 1), NewTopic(sink, 2, 1)]).values():
        future.result(30)
    produce_readings(broker.bootstrap, source, range(25), garbage=1)

    wait_until(lambda: job.metrics().get("output_rows_total", 0) == 2, STEP_SECONDS, "a window")
    wait_until(lambda: group_offsets(group) == {(source, 0): 51}, STEP_SECONDS, "the commit")
    wait_until(lambda: job.metrics()[f"lag_records/{source}"] == 0, 30, "no lag")
    metrics = job.metrics()
    assert metrics["input_rows_total"] == 51
    assert metrics["malformed_records_total"] == 1
    assert metrics["running"] == 1
    assert metrics["state_rows"] == 4
    watermark = NOON + timedelta(seconds=24 - 10)
    assert metrics["watermark_timestamp_seconds"] == watermark.timestamp()
    assert read_windows(broker.bootstrap, sink) == [(0, "web/0", 4.5, 10), (0, "web/1", 4.5, 10)]
    assert "usage_avg" in job.output  # on the terminal as well

    jvms = descendants(job.process.pid)
    assert job.process.stop(30) == 0
    psutil.wait_procs(jvms, 10)
    assert not any(process.is_running() for process in jvms)

    produce_readings(broker.bootstrap, source, range(25, 35))
    assert group_offsets(group) == {(source, 0): 51}  # what it missed meanwhile is lag
    job.start()
    wait_until(lambda: group_offsets(group) == {(source, 0): 71}, STEP_SECONDS, "the new commit")
    wait_until(lambda: job.metrics().get("output_rows_total", 0) == 2, STEP_SECONDS, "a window")
    assert read_windows(broker.bootstrap, sink) == [
        (0, "web/0", 4.5, 10),
        (0, "web/1", 4.5, 10),
        (10, "web/0", 14.5, 10),
        (10, "web/1", 14.5, 10),
    ]

    commits = job.metrics()["offset_commits_total"]
    broker.kill()
    time.sleep(2)  # a batch or two meet no broker
    broker.restart()
    produce_readings(broker.bootstrap, source, range(35, 45))
    wait_until(lambda: job.metrics().get("output_rows_total", 0) == 4, STEP_SECONDS, "a window")
    wait_until(lambda: job.metrics()["offset_commits_total"] > commits, 30, "a commit")
    wait_until(lambda: group_offsets(group) == {(source, 0): 91}, 30, "the last commit")
    assert job.process.is_running

    jvms = descendants(job.process.pid)
    job.process.kill()
    psutil.wait_procs(jvms, 20)
    assert not any(process.is_running() for process in jvms)  # a dead job leaves no JVM behind


def reset(bootstrap, group, source, offset):
    """Move the group as the operator does."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    action = ResetOffsets(
        resource=("ConsumerGroup", "default", group),
        group=group,
        request_id=f"to-{offset}",
        offsets={(source, 0): offset},
    )
    assert apply_actions(admin, [action]) == ()
    admin.close()


@pytest.mark.spark
@pytest.mark.slow
def test_a_reset_of_the_group_moves_the_job_and_its_undo_brings_the_state_back(
    job, application, broker, group_offsets
):
    source, sink = argument(application, "--input-topic"), argument(application, "--output-topic")
    group = argument(application, "--group")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic(source, 1, 1), NewTopic(sink, 2, 1)]).values():
        future.result(30)

    def run(rows, end):
        """Run the job until it wrote some windows and committed up to an offset."""
        job.start()
        wait_until(lambda: job.metrics().get("output_rows_total") == rows, STEP_SECONDS, "windows")
        wait_until(lambda: group_offsets(group) == {(source, 0): end}, STEP_SECONDS, "the commit")
        generation = job.metrics()["checkpoint_generation"]
        assert job.process.stop(30) == 0
        return generation

    produce_readings(broker.bootstrap, source, range(25))
    first_windows = [(0, "web/0", 4.5, 10), (0, "web/1", 4.5, 10)]
    assert run(2, 50) == 1
    assert read_windows(broker.bootstrap, sink) == first_windows

    reset(broker.bootstrap, group, source, 0)
    produce_readings(broker.bootstrap, source, range(25, 35))
    assert run(4, 70) == 2
    next_windows = [(10, "web/0", 14.5, 10), (10, "web/1", 14.5, 10)]
    assert read_windows(broker.bootstrap, sink) == sorted([*first_windows * 2, *next_windows])

    # Back where the first generation stopped: what it had counted of the next window is there.
    reset(broker.bootstrap, group, source, 50)
    assert run(2, 70) == 1
    assert read_windows(broker.bootstrap, sink) == sorted([*first_windows, *next_windows] * 2)


def run_job(*arguments):
    command = [sys.executable, "-m", "headrace_jobs.jobs.cpu_load", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


COMPLETE = ("--input-topic", "a", "--output-topic", "b", "--checkpoint", "/nowhere")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--window", "10x"), "argument --window: '10x' is not a duration"),
        (("--window", "0s"), "argument --window: must be longer than nothing"),
        (("--slide", "20s"), "argument --slide: must be"),
        (("--output-mode", "complete"), "argument --output-mode: invalid choice"),
        (("--metrics-port", "70000"), "argument --metrics-port: 70000 is not a port"),
        (("--max-offsets-per-trigger", "0"), "0 is not a positive number"),
    ],
)
def test_a_bad_argument_is_an_error_that_names_it(change, message):
    done = run_job(*COMPLETE, "--bootstrap-servers", "x:1", *change)
    assert done.returncode == 2
    assert message in done.stderr


def test_what_is_missing_is_named():
    done = run_job("--input-topic", "a")
    assert done.returncode == 2
    for flag in ("--bootstrap-servers", "--output-topic", "--checkpoint"):
        assert flag in done.stderr


def test_without_a_broker_the_job_says_so_and_gives_up_before_it_starts_a_jvm():
    address = f"127.0.0.1:{free_port()}"
    done = run_job(*COMPLETE, "--bootstrap-servers", address, "--startup-timeout", "1s")
    assert done.returncode == 1
    assert f"gave up after 1 s: no broker answers at {address}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_taken_metrics_port_is_an_error_that_says_what_to_do(broker):
    taken = broker.bootstrap.rpartition(":")[2]
    done = run_job(*COMPLETE, "--bootstrap-servers", "x:1", "--metrics-port", taken)
    assert done.returncode == 1
    assert "choose another --metrics-port" in done.stderr


def test_a_job_that_still_waits_stops_at_once(broker, tmp_path):
    command = [sys.executable, "-m", "headrace_jobs.jobs.cpu_load", *COMPLETE]
    process = ManagedProcess([*command, "--bootstrap-servers", broker.bootstrap], tmp_path / "log")
    wait_until(lambda: "topic a and b does not exist" in process.output_tail(), 30, "the reason")
    began = time.monotonic()
    assert process.stop(20) == 0
    assert time.monotonic() - began < 10
    assert signal.Signals.SIGTERM.name in process.output_tail()
