"""The windows of CPU readings by Flink SQL, by Kafka Streams and by our job: one shuffled input.

Each reads the same topic, whose readings come up to nine seconds out of order, and writes to a
topic of its own. All have to equal what is computed from the whole input at once, record by record.
"""

import json
import random
import sys
import uuid
from datetime import datetime
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.headrace_broker import HeadraceBroker
from support.kafka_peer import (
    FLINK_JVM,
    engine_jar_directory,
    flink_jar_directory,
    java_command,
)
from support.processes import ManagedProcess, wait_until
from support.spark_driver import driver_environment

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
SETTINGS = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
NOON_MS = 1_769_860_800_000
PARTITIONS = 2
HOSTS = ("web", "db", "mail")
CPUS = ("0", "1")
SECONDS = 300
SEED = 14


def readings(seconds):
    """One reading a second of each CPU, each up to nine seconds out of order."""
    rng = random.Random(SEED)
    found = [
        (second + rng.uniform(0, 9), host, cpu, rng.randrange(101), second)
        for second in seconds
        for host in HOSTS
        for cpu in CPUS
    ]
    return [reading for _, *reading in sorted(found)]


def windows_of(given):
    """Windows of ten seconds as (host, cpu, start) → (sum, maximum, readings): the oracle."""
    windows = {}
    for host, cpu, usage, second in given:
        windows.setdefault((host, cpu, second // 10 * 10), []).append(usage)
    return {at: (sum(each), max(each), len(each)) for at, each in windows.items()}


class Readings:
    """A broker, the input topic, and an output topic for each engine."""

    def __init__(self, bootstrap):
        self.bootstrap = bootstrap
        self.input = f"cpu_load_stats_real-{uuid.uuid4().hex[:8]}"
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._create(self.input, PARTITIONS)

    def produce(self, given):
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for host, cpu, usage, second in given:
            value = {"hostname": host, "cpu": cpu, "usage": usage}
            value["occurred_at"] = NOON_MS + second * 1000
            at = HOSTS.index(host) % PARTITIONS
            key = f"{host}/{cpu}"
            producer.produce(self.input, json.dumps(value), key=key, partition=at)
        assert producer.flush(60) == 0

    def new_output(self):
        name = f"windows-{uuid.uuid4().hex[:8]}"
        self._create(name, 1)
        return name

    def committed(self, topic):
        """What is committed in a topic of one partition, as (key, value)."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": uuid.uuid4().hex}
        settings |= {"auto.offset.reset": "earliest", "enable.partition.eof": True}
        consumer = Consumer(settings | {"isolation.level": "read_committed"})
        consumer.subscribe([topic])
        found = []
        while True:
            record = consumer.poll(60)
            assert record is not None, topic
            if record.error():
                consumer.close()
                return found
            found.append((record.key(), record.value().decode()))

    def group_offset(self, group):
        """How many records of the input a group has."""
        found = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        partitions = found[group].result(30).topic_partitions
        return sum(each.offset for each in partitions if each.topic == self.input)

    def _create(self, name, partitions):
        self._admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)


@pytest.fixture
def topics(tmp_path):
    with HeadraceBroker(tmp_path / "broker", SETTINGS) as broker:
        yield Readings(broker.bootstrap)


def as_table(rows):
    """Rows of (window, values) as a table; a window that is there twice is an error."""
    rows = list(rows)
    found = dict(rows)
    assert len(found) == len(rows)
    return found


def run_flink(topics, output, directory):
    """Run Flink to the topic's end; returns its windows so far."""
    arguments = [str(HERE / "FlinkCpuWindows.java"), topics.bootstrap, topics.input, output]
    arguments += [f"flink-{output}", str(directory / "checkpoints")]
    jvm = ["-Xmx700M", "-XX:TieredStopAtLevel=1", *FLINK_JVM]
    command = java_command(jvm, *arguments, jars=flink_jar_directory())
    flink = ManagedProcess(command, directory / "flink.log")
    try:
        wait_until(lambda: not flink.is_running, 400, "Flink's end")
    finally:
        flink.kill()
    assert flink.exit_status == 0, flink.output_tail()
    rows = [json.loads(value) for _, value in topics.committed(output)]
    return as_table(
        (
            (row["hostname"], row["cpu"], (row["start_ms"] - NOON_MS) // 1000),
            (row["usage_sum"], row["usage_max"], row["readings"]),
        )
        for row in rows
    )


@pytest.mark.java
def test_flink_sql_has_the_same_windows_and_goes_on_from_its_groups_offsets(topics, tmp_path):
    first, second = readings(range(SECONDS)), readings(range(600, 600 + SECONDS))
    output = topics.new_output()
    topics.produce(first)
    assert run_flink(topics, output, tmp_path) == windows_of(first)
    assert topics.group_offset(f"flink-{output}") == len(first)
    topics.produce(second)
    assert run_flink(topics, output, tmp_path) == windows_of([*first, *second])


@pytest.mark.java
def test_streams_has_the_same_windows_by_event_time_though_it_is_killed(topics, tmp_path):
    first, second = readings(range(SECONDS)), readings(range(SECONDS, 2 * SECONDS))
    # A window is closed when later readings of its partition came.
    closing = [(host, "0", 0, 10_000) for host in HOSTS]
    output = topics.new_output()
    arguments = [str(HERE / "StreamsCpuWindows.java"), topics.bootstrap, topics.input, output]
    arguments += [f"streams-{output}", str(tmp_path / "state")]
    jvm = ["-Xmx512M", "-XX:TieredStopAtLevel=1"]
    command = java_command(jvm, *arguments, jars=engine_jar_directory())

    def windows():
        assert running.is_running, running.output_tail()
        rows = ((key.decode(), value.split()) for key, value in topics.committed(output))
        return as_table(
            (
                (*key.partition("@")[0].split("/"), (int(key.partition("@")[2]) - NOON_MS) // 1000),
                (float(value[0]), float(value[1]), int(value[2])),
            )
            for key, value in rows
        )

    topics.produce(first)
    running = ManagedProcess(command, tmp_path / "streams.log")
    try:
        wait_until(lambda: len(windows()) > len(HOSTS), 300, "its first windows")
        running.kill()
        topics.produce([*second, *closing])
        running = ManagedProcess(command, tmp_path / "streams.log")
        expected = windows_of([*first, *second])
        wait_until(lambda: len(windows()) >= len(expected), 300, "all windows")
        assert windows() == expected
    finally:
        running.kill()


@pytest.mark.spark
def test_our_job_has_the_same_windows(topics, tmp_path):
    given = readings(range(SECONDS))
    topics.produce(given)
    output = topics.new_output()
    command = [sys.executable, "-m", "headrace_jobs.jobs.cpu_load", "--end-of-input"]
    command += ["--bootstrap-servers", topics.bootstrap, "--input-topic", topics.input]
    command += ["--output-topic", output, "--delivery", "exactly-once", "--name", output]
    command += ["--checkpoint", str(tmp_path / "checkpoint"), "--group", output, "--no-console"]
    job = ManagedProcess(command, tmp_path / "job.log", driver_environment())
    try:
        wait_until(lambda: not job.is_running, 400, "the job's end")
    finally:
        job.kill()
    assert job.exit_status == 0, job.output_tail()
    rows = [json.loads(value) for _, value in topics.committed(output)]
    assert windows_of(given) == as_table(
        (
            (
                row["hostname"],
                str(row["cpu"]),
                round(datetime.fromisoformat(row["window_start"]).timestamp()) - NOON_MS // 1000,
            ),
            (round(row["usage_avg"] * row["readings"]), row["usage_max"], row["readings"]),
        )
        for row in rows
    )
