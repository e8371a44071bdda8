"""A backlog whose partitions are read at different speeds in event time: every reading counts.

Batches are cut by offsets, so a partition that is sparse at first is read far ahead of a dense one.
With one watermark over both, 3,640 of the dense host's 6,000 readings were dropped without a word.
"""

import json
import os
import random
import subprocess
import sys
import uuid
from collections import Counter, defaultdict
from datetime import datetime, timedelta

import pytest
import yaml
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.jobs import JobProcess
from support.processes import wait_until
from support.spark_driver import driver_environment

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

NOON = datetime.fromisoformat("2026-01-31T12:00:00+00:00")
READINGS = 6_000
MINUTES = 100
SEED = 14


def reading(host, second):
    """A reading; those of `sparse` as its users declare them: `cpu` a string, milliseconds."""
    at = NOON + timedelta(seconds=second)
    common = {"hostname": host, "usage": second % 100}
    if host == "sparse":
        return common | {"cpu": "0", "occurred_at": int(at.timestamp()) * 1000}
    return common | {"cpu": 0, "occurred_at": at.isoformat()}


def skewed_log():
    """Return the values of each partition.

    Partition 0 has a reading a second of `steady`; partition 1 has a tenth of its readings in the
    first ninety minutes and the rest in the last ten, each up to nine seconds out of order.
    """
    rng = random.Random(SEED)
    seconds = MINUTES * 60
    steady = [(second + rng.uniform(0, 9), second) for second in range(seconds)]
    begin = [rng.randrange(seconds * 9 // 10) for _ in range(READINGS // 10)]
    end = [rng.randrange(seconds * 9 // 10, seconds) for _ in range(READINGS * 9 // 10)]
    sparse = [(second + rng.uniform(0, 9), second) for second in begin + end]
    return [
        [reading(host, second) for _, second in sorted(times)]
        for host, times in (("steady", steady), ("sparse", sparse))
    ]


def produce(bootstrap, topic, partitions):
    producer = Producer({"bootstrap.servers": bootstrap})
    for partition, values in enumerate(partitions):
        for value in values:
            text = value if isinstance(value, str) else json.dumps(value)
            producer.produce(topic, text, key="k", partition=partition)
            producer.poll(0)
    assert producer.flush(30) == 0


def read_all(bootstrap, topic):
    settings = {"group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    settings |= {"bootstrap.servers": bootstrap, "enable.partition.eof": True}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    found = []
    while (record := consumer.poll(30)) is not None and not record.error():
        found.append(record)
    consumer.close()
    return found


def windows_of(values):
    """Windows of ten seconds as (host, start) → (average, maximum, readings): the oracle."""
    windows = defaultdict(list)
    for value in values:
        at = value["occurred_at"]
        epoch = at / 1000 if isinstance(at, int) else datetime.fromisoformat(at).timestamp()
        second = int(epoch - NOON.timestamp())
        windows[value["hostname"], second // 10 * 10].append(value["usage"])
    return {
        window: (round(sum(usages) / len(usages), 9), max(usages), len(usages))
        for window, usages in windows.items()
    }


@pytest.fixture
def run(example_application, broker, tmp_path):
    """Return a function that runs the job over what is there, with 2,000 offsets a batch."""
    document = yaml.safe_load(example_application.read_text())
    unique = uuid.uuid4().hex[:8]
    arguments = document["spec"]["arguments"]
    names = {kind: f"{kind}-{unique}" for kind in ("output", "dead-letter")}
    names["input"] = f"cpu_load_stats_real-{unique}"
    for kind, name in names.items():
        arguments[arguments.index(f"--{kind}-topic") + 1] = name
    arguments[arguments.index("--group") + 1] = f"group-{unique}"
    arguments += ["--available-now", "--max-offsets-per-trigger", "2000", "--no-console"]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = [NewTopic(name, 2 if kind == "input" else 1, 1) for kind, name in names.items()]
    for future in admin.create_topics(topics).values():
        future.result(30)
    jobs = []

    def start():
        job = JobProcess(tmp_path, document, broker.bootstrap)
        jobs.append(job)
        job.start()
        wait_until(lambda: not job.process.is_running, 400, "the end of what was there")
        assert "the query failed" not in job.output, job.output
        return job

    start.topics = names
    yield start
    for job in jobs:
        job.close()


def test_every_reading_of_a_skewed_backlog_counts_and_late_ones_are_kept(run, broker):
    log = skewed_log()
    # These close every window, and then come readings that all windows of their host have passed.
    log = [[*part, *(reading(part[0]["hostname"], 7200 + n) for n in (0, 1))] for part in log]
    late = [reading("steady", second) for second in range(0, 50, 5)]
    produce(broker.bootstrap, run.topics["input"], [[*log[0], *late], [*log[1], "garbage"]])
    run()

    found = read_all(broker.bootstrap, run.topics["output"])
    windows = newest_windows(found)
    assert len(windows) == len(found)  # each once
    expected = windows_of([value for part in log for value in part])
    assert windows == {at: values for at, values in expected.items() if at[1] < MINUTES * 60}

    letters = read_all(broker.bootstrap, run.topics["dead-letter"])
    reasons = Counter(dict(letter.headers())["headrace.reason"].decode() for letter in letters)
    lateness = "late: the watermark has passed its windows"
    assert reasons == {lateness: len(late), "it is no reading": 1}
    kept = [
        each for each in letters if dict(each.headers())["headrace.reason"] == lateness.encode()
    ]
    assert [json.loads(letter.value()) for letter in kept] == late
    missed = NOON + timedelta(seconds=7201 - 10)
    watermarks = {dict(letter.headers())["headrace.watermark"].decode() for letter in kept}
    assert {datetime.fromisoformat(text) for text in watermarks} == {missed}

    counted = sum(values[2] for values in windows.values()) + 2 * 2  # two windows are still open
    assert counted + len(letters) == sum(map(len, log)) + len(late) + 1

    said = replay_late(run, broker)
    assert "late records were put right" in said
    assert f"records={len(late)}" in said
    corrected = read_all(broker.bootstrap, run.topics["output"])
    right = windows_of([*(value for part in log for value in part), *late])
    assert newest_windows(corrected) == {at: right[at] for at in windows}
    # Those that late readings touch, and no others.
    assert len(corrected) == len(found) + len(windows_of(late))
    assert {json.loads(each.value())["revision"] for each in found} == {0}
    assert "no dead letters came since" in replay_late(run, broker)
    assert len(read_all(broker.bootstrap, run.topics["output"])) == len(corrected)


def newest_windows(records):
    """Return the last record of each window as (host, start) → (average, maximum, readings)."""
    windows = {}
    for record in records:
        window = json.loads(record.value())
        start = int((datetime.fromisoformat(window["window_start"]) - NOON).total_seconds())
        values = (window["usage_avg"], window["usage_max"], window["readings"])
        windows[window["hostname"], start] = values
    return windows


def replay_late(run, broker):
    """Run the command beside the job's arguments; returns what it said."""
    command = [sys.executable, "-m", "headrace_cli", "jobs", "replay-late"]
    command += ["headrace_jobs.jobs.cpu_load", "--bootstrap-servers", broker.bootstrap]
    for kind, name in run.topics.items():
        command += [f"--{kind}-topic", name]
    environment = os.environ | driver_environment() | {"NO_COLOR": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
