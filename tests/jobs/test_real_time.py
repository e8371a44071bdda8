"""Real-time mode: records are out before their batch ends; what cannot be is refused."""

import signal
import sys
import uuid
from collections import Counter

import pytest
from confluent_kafka import Consumer, Producer

from headrace_jobs.declaration import Job, Topic
from headrace_jobs.jobs.declared import parse_declared
from headrace_jobs.sinks.files import FileTable
from headrace_jobs.sinks.kafka import KafkaSink
from support.processes import ManagedProcess, wait_until
from support.spark_driver import driver_environment

STEP_SECONDS = 300
OUT = KafkaSink(topic="out", key_columns=("key",))
FILES = FileTable(path="/t")


def declared(sinks):
    return Job(name="fast", sources=(Topic("in"),), transform=lambda frame: frame, sinks=sinks)


@pytest.mark.parametrize(
    ("sinks", "arguments", "reason"),
    [
        ((OUT,), ("--delivery", "exactly-once"), "delivery exactly-once cannot hold"),
        ((OUT,), ("--delivery", "at-most-once"), "delivery at-most-once cannot hold"),
        ((OUT, OUT), (), "results go into one topic, not into several"),
        ((FILES,), (), "results go into one topic, not into delta table /t"),
        ((OUT,), ("--dead-letter-topic", "dead"), "a batch has no end at which"),
        ((OUT,), ("--available-now",), "it has no end"),
    ],
)
def test_what_cannot_take_part_is_refused_with_the_reason(sinks, arguments, reason, capsys):
    common = ("--bootstrap-servers", "x:1", "--checkpoint", "/nowhere", "--real-time", "10s")
    with pytest.raises(SystemExit) as ended:
        parse_declared(declared(sinks), [*common, *arguments])
    assert ended.value.code == 2
    assert f"--real-time: {reason}" in " ".join(capsys.readouterr().err.split())


def test_a_batch_lasts_long_enough(capsys):
    common = ("--bootstrap-servers", "x:1", "--checkpoint", "/nowhere", "--real-time", "1s")
    with pytest.raises(SystemExit):
        parse_declared(declared((OUT,)), common)
    assert "--real-time: a batch lasts 5 s at least" in capsys.readouterr().err


MODULE = """
from headrace_jobs.declaration import Job, Topic
from headrace_jobs.sinks.kafka import KafkaSink


def shouted(records):
    return records.selectExpr("CAST(key AS STRING) AS key", "upper(CAST(value AS STRING)) AS text")


def counted(records):
    return records.groupBy(records.key).count()


JOB = Job(
    name="shout", sources=(Topic(),), transform=TRANSFORM,
    sinks=(KafkaSink(key_columns=("key",), value_column="text"),),
)
"""


@pytest.fixture
def start(tmp_path, broker, new_topic):
    """Return a function that starts the job's next driver."""
    topics = {"input": new_topic(), "output": new_topic()}
    drivers = []

    def start_it(*more, transform="shouted"):
        (tmp_path / "shout.py").write_text(MODULE.replace("TRANSFORM", transform))
        command = [sys.executable, "-m", "headrace_jobs.jobs.run", str(tmp_path / "shout.py")]
        command += ["--bootstrap-servers", broker.bootstrap, "--group", f"g-{topics['input']}"]
        for kind, name in topics.items():
            command += [f"--{kind}-topic", name]
        command += ["--checkpoint", str(tmp_path / "checkpoint"), *more]
        log = tmp_path / f"driver-{len(drivers)}.log"
        drivers.append(ManagedProcess(command, log, driver_environment()))
        return drivers[-1]

    start_it.topics = topics
    yield start_it
    for driver in drivers:
        driver.kill()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_records_are_out_before_their_batch_ends_and_none_is_lost_when_the_driver_is_killed(
    start, broker, group_offsets, tmp_path
):
    source, group = start.topics["input"], f"g-{start.topics['input']}"
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    settings = {"group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | {"bootstrap.servers": broker.bootstrap})
    consumer.subscribe([start.topics["output"]])
    found = Counter()

    def send(numbers):
        for number in numbers:
            producer.produce(source, f"v{number}", key="k")
        assert producer.flush(30) == 0

    def has_come(numbers):
        record = consumer.poll(1)
        if record is not None and not record.error():
            found[record.value().decode()] += 1
        return found.keys() >= {f"V{number}" for number in numbers}

    driver = start("--real-time", "10m")
    send(range(5))
    wait_until(lambda: has_come(range(5)) or not driver.is_running, STEP_SECONDS, "the results")
    assert driver.is_running, driver.output_tail()
    # The batch that they belong to has not ended: it lasts ten minutes.
    assert list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")) == []
    driver.kill()
    assert driver.exit_status == -signal.SIGKILL

    driver = start("--real-time", "5s")
    send(range(5, 10))
    wait_until(lambda: has_come(range(10)) or not driver.is_running, STEP_SECONDS, "all results")
    wait_until(lambda: group_offsets(group) == {(source, 0): 10}, STEP_SECONDS, "the group")
    assert driver.is_running, driver.output_tail()
    # A second driver replaces the first, which ends by itself.
    successor = start("--real-time", "5s")
    wait_until(lambda: not driver.is_running, STEP_SECONDS, "the end of the one before")
    assert driver.exit_status == 1
    assert "another driver started on this checkpoint" in driver.log_path.read_text()
    assert successor.stop(120) == 0
    consumer.close()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_with_state_is_refused_with_the_reason(start):
    driver = start("--real-time", "5s", transform="counted")
    wait_until(lambda: not driver.is_running, STEP_SECONDS, "the refusal")
    assert driver.exit_status == 1
    assert "--real-time: the job has state" in driver.log_path.read_text()
