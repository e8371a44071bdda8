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
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kafka import KafkaAdminClient

from headrace_operator.apply import apply_actions
from headrace_operator.plan import ResetOffsets
from support.jobs import JobProcess
from support.processes import ManagedProcess, free_port, wait_until

pytestmark = pytest.mark.timeout(900)

NOON = datetime.fromisoformat("2026-01-31T12:00:00+00:00")
STEP_SECONDS = 240
DEAD_LETTER_BYTES_MAX = 10_000


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
        "--dead-letter-topic": f"dead-{unique}",
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


def create_topics(bootstrap, application):
    """Create the topics of the job; returns the names of input and output."""
    names = [argument(application, f"--{kind}-topic") for kind in ("input", "output")]
    dead_letters = argument(application, "--dead-letter-topic")
    limit = {"max.message.bytes": str(DEAD_LETTER_BYTES_MAX)}
    topics = [
        NewTopic(names[0], 1, 1),
        NewTopic(names[1], 2, 1),
        NewTopic(dead_letters, 1, 1, config=limit),
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics(topics).values():
        future.result(30)
    return names


def descendants(pid):
    return psutil.Process(pid).children(recursive=True)


@pytest.mark.spark
@pytest.mark.slow
def test_the_job_computes_reports_stops_cleanly_and_goes_on_where_it_stopped(
    job, application, broker, group_offsets
):
    group = argument(application, "--group")
    job.start()
    wait_until(lambda: "does not exist" in job.output, STEP_SECONDS, "a word on the missing topics")
    source, sink = create_topics(broker.bootstrap, application)
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
    assert "usage_avg" not in job.output  # standard output is no terminal

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
    group = argument(application, "--group")
    source, sink = create_topics(broker.bootstrap, application)

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


def read_records(bootstrap, topic, count):
    """The first records of a topic's partition 0, with their headers."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while len(found) < count:
        record = consumer.poll(30)
        assert record is not None, f"{len(found)} of {count} records"
        found.append(record)
    consumer.close()
    return found


@pytest.mark.spark
@pytest.mark.slow
def test_bad_records_go_to_the_dead_letter_topic_and_the_job_goes_on(
    job, application, broker, group_offsets
):
    group = argument(application, "--group")
    source, sink = create_topics(broker.bootstrap, application)
    dead_letters = argument(application, "--dead-letter-topic")
    good = {"hostname": "web", "cpu": 0, "usage": 1.0, "occurred_at": NOON.isoformat()}
    bad = {
        b"not json": "it is no reading",
        b"\xff\xfe\x00": "it is no reading",
        json.dumps({**good, "cpu": -1}).encode(): "cpu is neither an integer from 0 nor a name",
        json.dumps({**good, "occurred_at": "9999-01-01T00:00:00Z"}).encode(): (
            "occurred_at is more than 3600 s after the record"
        ),
        json.dumps({**good, "occurred_at": "+294247-01-10T04:00:54Z"}).encode(): (
            "occurred_at is neither ISO 8601 nor milliseconds"
        ),
    }
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in bad:
        producer.produce(source, value, key=b"k", headers=[("trace", b"7")])
    producer.produce(source, None, key=b"tombstone")
    assert producer.flush(30) == 0
    produce_readings(broker.bootstrap, source, range(25))
    job.start()
    wait_until(lambda: job.metrics().get("dead_letters_total") == 6, STEP_SECONDS, "dead letters")
    wait_until(lambda: group_offsets(group) == {(source, 0): 56}, STEP_SECONDS, "the commit")
    found = read_records(broker.bootstrap, dead_letters, 6)
    assert [record.value() for record in found] == [*bad, None]
    headers = [dict(record.headers()) for record in found]
    assert [each["headrace.reason"].decode() for each in headers] == [
        *bad.values(),
        "it has no value",
    ]
    assert [each["headrace.offset"] for each in headers] == [b"%d" % index for index in range(6)]
    assert found[0].key() == b"k"
    assert headers[0]["trace"] == b"7"
    assert headers[0]["headrace.topic"].decode() == source
    # One that is too large for the topic is cut.
    producer.produce(source, bytes(DEAD_LETTER_BYTES_MAX))
    assert producer.flush(30) == 0
    wait_until(lambda: job.metrics().get("dead_letters_total") == 7, STEP_SECONDS, "a large one")
    cut = dict(read_records(broker.bootstrap, dead_letters, 7)[-1].headers())
    assert cut["headrace.original-bytes"] == b"%d" % DEAD_LETTER_BYTES_MAX
    # Where the topic takes nothing, bad records are counted and good ones go on.
    topic = ConfigResource(ResourceType.TOPIC, dead_letters)
    topic.add_incremental_config(
        ConfigEntry("max.message.bytes", "1", incremental_operation=AlterConfigOpType.SET)
    )
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.incremental_alter_configs([topic])[topic].result(30)
    producer.produce(source, b"worse")
    assert producer.flush(30) == 0
    produce_readings(broker.bootstrap, source, range(25, 35))
    wait_until(lambda: job.metrics().get("dead_letter_failures_total", 0) > 0, 120, "a failure")
    wait_until(lambda: group_offsets(group) == {(source, 0): 78}, STEP_SECONDS, "the commit")
    assert job.metrics()["malformed_records_total"] == 8
    assert "malformed records were not written to" in job.output
    # A window is out when the watermark has passed it, by a batch after the one that was committed.
    wait_until(lambda: len(read_windows(broker.bootstrap, sink)) == 4, STEP_SECONDS, "the windows")
    assert job.process.is_running


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
        (("--metrics-port", "70000"), "argument --metrics-port: '70000' is not a port"),
        (("--max-offsets-per-trigger", "0"), "'0' is not a positive number"),
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
