"""Every record of `cpu-load` is in a window, late or malformed, whatever is killed meanwhile.

Exactly once that is true of what is stored: the readings that windows count, and the places of the
dead letters, which may be there several times. Metrics begin anew with each driver: of one they add
up for the batches that it did, also where executors were killed.
"""

import json
import os
import signal
import sys
import urllib.request
import uuid
from collections import Counter
from datetime import datetime, timedelta

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.crash_points import EXECUTOR_POINTS, POINTS
from support.processes import ManagedProcess, wait_until
from support.spark_driver import driver_environment
from support.spark_home import writable_spark_home

IS_LONG = os.environ.get("HEADRACE_CRASHES") == "all"
pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not IS_LONG, reason="NOT TESTED: the long form, make crashes"),
]

NOON = datetime.fromisoformat("2026-01-31T12:00:00+00:00")
STEP_SECONDS = 900
HOSTS = ("web", "db")
#: Of each partition and batch.
RECORDS_A_BATCH = 8
#: On a machine so busy that a Python process does not start within ten seconds.
GIVEN_UP = "Python worker failed to connect back"
CLUSTER = "local-cluster[2,1,512]"


def batch_of(host, number):
    """A partition's records of a batch: readings of ten seconds, a late one and two malformed ones.

    The first batches have another reading in the late one's place.
    """
    seconds = [10 * number + second for second in (0, 2, 4, 6, 8)]
    found = [(host, second) for second in seconds]
    late = (host, 10 * (number - 3) + 1) if number > 2 else (host, 10 * number + 9)
    return [*found[:3], "garbage", *found[3:], late, {"hostname": host, "usage": 200}]


def is_late(number, place):
    return number > 2 and place == RECORDS_A_BATCH - 2


class Accounts:
    """The job over a topic of a partition for each host, and what is stored of it."""

    def __init__(self, directory, bootstrap, batches):
        self.directory = directory
        self.name = f"accounts-{uuid.uuid4().hex[:8]}"
        self._bootstrap = bootstrap
        admin = AdminClient({"bootstrap.servers": bootstrap})
        topics = [NewTopic(self._topic(each), len(HOSTS), 1) for each in ("in", "out", "dead")]
        for future in admin.create_topics(topics).values():
            future.result(30)
        self.drivers = []
        self.readings, self.late, self.malformed = Counter(), set(), set()
        producer = Producer({"bootstrap.servers": bootstrap})
        for partition, host in enumerate(HOSTS):
            for number in range(batches):
                for place, record in enumerate(batch_of(host, number)):
                    self._produce(producer, partition, number, place, record)
        assert producer.flush(30) == 0
        self.records = len(HOSTS) * batches * RECORDS_A_BATCH

    def _produce(self, producer, partition, number, place, record):
        at = (partition, number * RECORDS_A_BATCH + place)
        if isinstance(record, tuple):
            host, second = record
            occurred = (NOON + timedelta(seconds=second)).isoformat()
            value = {"hostname": host, "cpu": 0, "usage": 1, "occurred_at": occurred}
            if is_late(number, place):
                self.late.add(at)
            else:
                self.readings[host, second // 10 * 10] += 1
        else:
            value = record
            self.malformed.add(at)
        text = value if isinstance(value, str) else json.dumps(value)
        producer.produce(self._topic("in"), text, partition=partition)

    def _topic(self, kind):
        return f"{self.name}-{kind}"

    def start(self, *more, point="none", batch_id=-1, master="local[2]"):
        command = [sys.executable, "-m", "support.crashing_job", point, str(batch_id)]
        command += ["headrace_jobs.jobs.cpu_load", "--bootstrap-servers", self._bootstrap]
        command += ["--input-topic", self._topic("in"), "--output-topic", self._topic("out")]
        command += ["--dead-letter-topic", self._topic("dead"), "--delivery", "exactly-once"]
        command += ["--checkpoint", str(self.directory / "checkpoint"), "--no-console"]
        command += ["--group", self.name, "--name", self.name, "--idle-timeout", "0s"]
        command += ["--max-offsets-per-trigger", str(len(HOSTS) * RECORDS_A_BATCH)]
        command += ["--metrics-address-file", str(self.directory / "metrics.address")]
        command += ["--trigger", "0s", *more]
        environment = driver_environment(master)
        if master == CLUSTER:
            environment["SPARK_HOME"] = writable_spark_home(self.directory)
        log = self.directory / f"driver-{len(self.drivers)}.log"
        self.drivers.append(ManagedProcess(command, log, environment))
        return self.drivers[-1]

    def run(self, *more, **options):
        """Run a driver to its end; returns its exit status."""
        driver = self.start(*more, **options)
        wait_until(lambda: not driver.is_running, STEP_SECONDS, "the driver's end")
        if GIVEN_UP in self.output():
            return self.run(*more, **options)
        return driver.exit_status

    def output(self):
        return self.drivers[-1].log_path.read_text(errors="replace")

    def stored_readings(self):
        """Return how many readings each committed window counts, by its newest revision."""
        found = {}
        for record in self._read("out"):
            window = json.loads(record.value())
            start = int((datetime.fromisoformat(window["window_start"]) - NOON).total_seconds())
            counts = found.setdefault((window["hostname"], start), [])
            assert window["revision"] == len(counts), (window, counts)  # none is there twice
            counts.append(window["readings"])
        return Counter({at: counts[-1] for at, counts in found.items()})

    def dead_letters(self):
        """Return the places of late records and of malformed ones, each as often as it is there."""
        late, malformed = Counter(), Counter()
        for record in self._read("dead"):
            headers = {name: value.decode() for name, value in record.headers()}
            place = (int(headers["headrace.partition"]), int(headers["headrace.offset"]))
            (late if headers["headrace.reason"].startswith("late") else malformed)[place] += 1
        return late, malformed

    def counters(self):
        """Return the running driver's counters by name."""
        address = (self.directory / "metrics.address").read_text().strip()
        with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310 - our own job
            lines = answer.read().decode().splitlines()
        series = (line.rpartition(" ") for line in lines if line.startswith("headrace_job_"))
        return {name.partition("{")[0]: float(value) for name, _, value in series}

    def assert_nothing_is_counted_twice(self):
        """Whatever was done so far is a part of what has to be there in the end."""
        stored, (late, malformed) = self.stored_readings(), self.dead_letters()
        assert not stored - self.readings
        assert late.keys() <= self.late
        assert malformed.keys() <= self.malformed

    def assert_all_is_accounted_for(self):
        stored, (late, malformed) = self.stored_readings(), self.dead_letters()
        assert late.keys() == self.late
        assert malformed.keys() == self.malformed
        assert stored == self.readings
        assert stored.total() + len(late) + len(malformed) == self.records

    def _read(self, kind):
        settings = {"group.id": uuid.uuid4().hex, "isolation.level": "read_committed"}
        settings |= {"bootstrap.servers": self._bootstrap, "enable.partition.eof": True}
        consumer = Consumer(settings | {"auto.offset.reset": "earliest"})
        consumer.subscribe([self._topic(kind)])
        ended = set()
        while len(ended) < len(HOSTS):
            record = consumer.poll(60)
            assert record is not None, kind
            if record.error():
                ended.add(record.partition())
            else:
                yield record
        consumer.close()

    def close(self):
        for driver in self.drivers:
            driver.kill()


@pytest.fixture
def accounts(request, tmp_path, broker):
    found = Accounts(tmp_path, broker.bootstrap, request.param)
    yield found
    found.close()


@pytest.mark.parametrize("accounts", [len(POINTS["kafka"]) + 4], indirect=True)
def test_every_record_is_accounted_for_wherever_the_driver_is_killed(accounts):
    # From the fourth batch on each has a late record.
    for batch_id, point in enumerate(POINTS["kafka"], start=3):
        status = accounts.run("--available-now", point=point, batch_id=batch_id)
        assert status == -signal.SIGKILL, (point, accounts.output())
        accounts.assert_nothing_is_counted_twice()
    assert accounts.run("--end-of-input") == 0, accounts.output()
    accounts.assert_all_is_accounted_for()


@pytest.mark.parametrize("accounts", [len(EXECUTOR_POINTS) + 4], indirect=True)
def test_a_drivers_counters_add_up_wherever_an_executor_is_killed(accounts):
    points = ",".join(EXECUTOR_POINTS)
    driver = accounts.start(point=points, batch_id=3, master=CLUSTER)

    def has_read_all():
        assert driver.is_running, accounts.output()
        if not (accounts.directory / "metrics.address").exists():
            return False
        found = accounts.counters()
        # What became of a batch's records is known when it is done, a little later.
        known = ("input_rows", "counted_records", "late_records", "malformed_records")
        read, *kinds = (found[f"headrace_job_{each}_total"] for each in known)
        return min(read, sum(kinds)) >= accounts.records

    wait_until(has_read_all, STEP_SECONDS, "all records")
    found = accounts.counters()
    for point in EXECUTOR_POINTS:
        assert f"crash: {point}: " in accounts.output()
        assert f"crash: {point}: 0" not in accounts.output()
    kinds = {kind: found[f"headrace_job_{kind}_records_total"] for kind in ("counted", "late")}
    kinds["malformed"] = found["headrace_job_malformed_records_total"]
    assert kinds == {
        "counted": accounts.readings.total(),
        "late": len(accounts.late),
        "malformed": len(accounts.malformed),
    }
    assert found["headrace_job_input_rows_total"] == accounts.records
    driver.stop(timeout_seconds=STEP_SECONDS)
    assert accounts.run("--end-of-input", "--available-now") == 0, accounts.output()
    accounts.assert_all_is_accounted_for()
