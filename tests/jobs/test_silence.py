"""Topics that are wholly silent: the last windows come out, once, and a backfill has the same.

The driver is killed when it has written the batch of the silence, which runs again.
"""

import json
import random
import signal
import sys
import uuid
from datetime import datetime, timedelta

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.processes import ManagedProcess, wait_until
from support.spark_driver import driver_environment

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

NOON = datetime.fromisoformat("2026-01-31T12:00:00+00:00")
STEP_SECONDS = 300
HOSTS = ("web", "db")
SEED = 11


class CpuLoad:
    """The job's drivers over one input topic of two partitions."""

    def __init__(self, directory, bootstrap):
        self.directory = directory
        self.name = f"silence-{uuid.uuid4().hex[:8]}"
        self._bootstrap = bootstrap
        admin = AdminClient({"bootstrap.servers": bootstrap})
        topics = [NewTopic(f"{self.name}-{each}", 2, 1) for each in ("in", "g1", "g2", "dead")]
        for future in admin.create_topics(topics).values():
            future.result(30)
        self.drivers = []

    def produce(self, readings):
        producer = Producer({"bootstrap.servers": self._bootstrap})
        for host, second in readings:
            at = (NOON + timedelta(seconds=second)).isoformat()
            value = {"hostname": host, "cpu": 0, "usage": second, "occurred_at": at}
            partition = HOSTS.index(host)
            producer.produce(f"{self.name}-in", json.dumps(value), partition=partition)
        assert producer.flush(30) == 0

    def start(self, generation, *more, point="none", batch_id=-1):
        command = [sys.executable, "-m", "support.crashing_job", point, str(batch_id)]
        command += ["headrace_jobs.jobs.cpu_load", "--bootstrap-servers", self._bootstrap]
        command += ["--input-topic", f"{self.name}-in", "--dead-letter-topic", f"{self.name}-dead"]
        command += ["--output-topic", f"{self.name}-g{generation}", "--delivery", "exactly-once"]
        command += ["--checkpoint", str(self.directory / "checkpoint"), "--no-console"]
        command += ["--generation", str(generation), "--trigger", "1s", *more]
        command += ["--group", f"{self.name}-{generation}", "--name", self.name]
        log = self.directory / f"driver-{len(self.drivers)}.log"
        self.drivers.append(ManagedProcess(command, log, driver_environment()))
        return self.drivers[-1]

    def revisions(self, generation):
        """Committed windows as (host, second) → [(sum, maximum, readings), …], by revision."""
        found = {}
        for window in self._read(f"{self.name}-g{generation}"):
            start = int((datetime.fromisoformat(window["window_start"]) - NOON).total_seconds())
            total = round(window["usage_avg"] * window["readings"])
            told = found.setdefault((window["hostname"], start), [])
            assert window["revision"] == len(told)  # none is missing, none is there twice
            told.append((total, window["usage_max"], window["readings"]))
        return found

    def dead_letters(self):
        return list(self._read(f"{self.name}-dead"))

    def close(self):
        for driver in self.drivers:
            driver.kill()

    def _read(self, topic):
        settings = {"group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
        settings |= {"bootstrap.servers": self._bootstrap, "enable.partition.eof": True}
        consumer = Consumer(settings | {"isolation.level": "read_committed"})
        consumer.subscribe([topic])
        ended = set()
        while len(ended) < 2:
            record = consumer.poll(60)
            assert record is not None, topic
            if record.error():
                ended.add(record.partition())
            else:
                yield json.loads(record.value())
        consumer.close()


@pytest.fixture
def job(tmp_path, broker):
    found = CpuLoad(tmp_path, broker.bootstrap)
    yield found
    found.close()


def oracle(readings):
    """Windows of ten seconds over everything, computed at once."""
    windows = {}
    for host, second in readings:
        windows.setdefault((host, second // 10 * 10), []).append(second)
    return {at: (sum(each), max(each), len(each)) for at, each in windows.items()}


def last(revisions):
    return {at: each[-1] for at, each in revisions.items()}


def shuffled(seconds):
    """Readings of all hosts, each up to five seconds out of order."""
    rng = random.Random(SEED)
    order = sorted(seconds, key=lambda second: second + rng.uniform(0, 5))
    return [(host, second) for second in order for host in HOSTS]


def test_a_topic_that_falls_silent_closes_its_windows_and_a_backfill_has_the_same(job):
    first = shuffled(range(45))
    job.produce(first)
    live = ("--idle-timeout", "1s")
    driver = job.start(1, *live, point="written", batch_id=1)
    wait_until(lambda: not driver.is_running, STEP_SECONDS, "the end of the driver")
    assert driver.exit_status == -signal.SIGKILL, driver.log_path.read_text()
    # Written by the batch of the silence, before the driver was killed.
    written = job.revisions(1)
    assert last(written) == oracle(first)
    assert {len(each) for each in written.values()} == {1}

    # More of the same windows corrects them, once that is silent, too.
    more = [(host, second) for second in (45, 46, 57) for host in HOSTS]
    driver = job.start(1, *live)
    job.produce(more)
    expected = oracle([*first, *more])
    wait_until(lambda: last(job.revisions(1)) == expected, STEP_SECONDS, "the corrected windows")
    assert max(len(each) for each in job.revisions(1).values()) <= 3
    assert driver.is_running, driver.log_path.read_text()
    driver.kill()
    assert job.dead_letters() == []

    driver = job.start(2, "--end-of-input")
    wait_until(lambda: not driver.is_running, STEP_SECONDS, "the end of the backfill")
    assert driver.exit_status == 0, driver.log_path.read_text()
    backfilled = job.revisions(2)
    assert last(backfilled) == expected
    assert {len(each) for each in backfilled.values()} == {1}
