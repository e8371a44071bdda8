"""Drivers and executors killed with SIGKILL at every step of a batch, zombies, lost checkpoints.

The job appends each record's position to a table without a key: a record that is lost or repeated
shows. `HEADRACE_CRASHES=all` (`make crashes`) runs every point for every delivery.
"""

import json
import os
import re
import shlex
import shutil
import signal
import sys
import uuid
from collections import Counter
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from headrace_jobs.jars import resolve
from headrace_jobs.progress.checkpoint import committed_position
from headrace_jobs.session import LOG4J_CONFIGURATION
from support.crashing_job import EXECUTOR_POINTS, POINTS
from support.processes import ManagedProcess, wait_until
from support.shared_classes import shared_class_options

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

JAVA_OPTIONS = (
    f"-Dlog4j2.configurationFile={LOG4J_CONFIGURATION.as_uri()} "
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
)
TESTS = Path(__file__).parents[1]
RECORDS = 80
RECORDS_A_BATCH = 8
STEP_SECONDS = 600
IS_LONG = os.environ.get("HEADRACE_CRASHES") == "all"
SHORT = ("in-a-task", "after-commit")
SHORT_OF_EXECUTORS = ("worker-after-a-task", "executor-in-a-task")
#: Two executors, each a JVM with one core and 512 MiB.
CLUSTER = "local-cluster[2,1,512]"
#: Each start of a driver is a JVM's: the short form has few, and `test_delivery` the rest.
only_long = pytest.mark.skipif(not IS_LONG, reason="the long form: make crashes")


def submit(master):
    """Return the driver's arguments for Spark."""
    shared, java_options = shared_class_options()
    return shlex.join(
        [
            *shared,
            *("--master", master, "--driver-memory", "512m"),
            *("--conf", "spark.executor.memory=512m"),
            *("--jars", ",".join(map(str, resolve()))),
            *("--driver-java-options", f"{JAVA_OPTIONS} {java_options}"),
            *("--conf", f"spark.executor.extraJavaOptions={JAVA_OPTIONS}"),
            *("--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2"),
            *("--conf", "spark.driver.host=127.0.0.1"),
            *("--conf", "spark.driver.bindAddress=127.0.0.1"),
            *("--conf", "spark.ui.showConsoleProgress=false", "pyspark-shell"),
        ]
    )


def spark_home(directory):
    """Return PySpark's own files under a folder in which a local-cluster may write its logs."""
    import pyspark

    home = directory / "spark"
    if not home.exists():
        home.mkdir()
        for each in Path(pyspark.__file__).parent.iterdir():
            (home / each.name).symlink_to(each)
    return str(home)


class CountedJob:
    """The job's drivers, one after the other or at once, on one checkpoint and one table."""

    def __init__(self, directory, postgres, bootstrap, topic):
        self.directory = directory
        self.checkpoint = directory / "checkpoint"
        self.topic = topic
        self.table = f"counted_{uuid.uuid4().hex[:8]}"
        self.group = f"group-{self.table}"
        self._postgres = postgres
        self._bootstrap = bootstrap
        self._log_number = 0
        self.drivers = []

    def start(
        self,
        *more,
        point="none",
        batch_id=-1,
        delivery="exactly-once",
        is_stateful=False,
        master="local[2]",
    ):
        command = [sys.executable, "-m", "support.crashing_job", point, str(batch_id)]
        command += ["support.counted_job", "--bootstrap-servers", self._bootstrap]
        command += ["--input-topic", self.topic, "--checkpoint", str(self.checkpoint)]
        command += ["--group", self.group, "--delivery", delivery, "--no-console"]
        command += [
            "--metrics-port",
            "0",
            "--trigger",
            "0s",
            "--max-offsets-per-trigger",
            str(RECORDS_A_BATCH),
            *more,
        ]
        self._log_number += 1
        environment = {
            "PYTHONPATH": str(TESTS),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": submit(master),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "COUNTED_TABLE": self.table,
            "COUNTED_DSN": self._postgres.dsn,
            "COUNTED_STATEFUL": "1" if is_stateful else "0",
        }
        if master == CLUSTER:
            environment["SPARK_HOME"] = spark_home(self.directory)
        log = self.directory / f"driver-{self._log_number}.log"
        self.drivers.append(ManagedProcess(command, log, environment))
        return self.drivers[-1]

    def run(self, point="none", batch_id=-1, **options):
        """Run a driver until it has read all or was killed; returns its exit status."""
        driver = self.start("--available-now", point=point, batch_id=batch_id, **options)
        wait_until(lambda: not driver.is_running, STEP_SECONDS, "the driver's end")
        return driver.exit_status

    def output(self):
        return self.drivers[-1].log_path.read_text(errors="replace")

    def rows(self):
        """How often the table has each position."""
        if not self._postgres.query(f"SELECT to_regclass('{self.table}')")[0][0]:
            return Counter()
        found = self._postgres.query(f"SELECT at, position FROM {self.table}")  # noqa: S608 - ours
        return Counter(tuple(row) for row in found)

    def stored(self):
        """The offsets that the sink has stored, by partition."""
        found = self._postgres.query(
            f"SELECT offsets::text FROM headrace_progress WHERE output = '{self.table}'"  # noqa: S608
        )
        offsets = json.loads(found[0][0]) if found else {}
        return {int(at): offset for at, offset in offsets.get(self.topic, {}).items()}

    def close(self):
        for driver in self.drivers:
            driver.kill()


@pytest.fixture
def job(tmp_path, postgres, broker, new_topic):
    topic = new_topic(2)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, str(number), partition=number % 2)
    assert producer.flush(30) == 0
    found = CountedJob(tmp_path, postgres, broker.bootstrap, topic)
    yield found
    found.close()


ALL = Counter({(number % 2, number // 2): 1 for number in range(RECORDS)})


def assert_invariants(job, group_offsets):
    """Stored offsets match stored rows; the group is never ahead of the checkpoint."""
    stored = job.stored()
    held = Counter(at for at, _ in job.rows().elements())
    assert {at: held[at] for at in stored} == stored
    committed = committed_position(str(job.checkpoint))
    for at, offset in group_offsets(job.group).items():
        assert offset <= committed.get(at, 0)


def test_exactly_once_holds_wherever_the_driver_is_killed(job, group_offsets):
    points = POINTS if IS_LONG else SHORT
    for batch_id, point in enumerate(points, start=1):
        assert job.run(point, batch_id) == -signal.SIGKILL, (point, job.output())
        assert_invariants(job, group_offsets)
    assert job.run() == 0, job.output()
    assert job.rows() == ALL
    assert_invariants(job, group_offsets)
    assert sum(group_offsets(job.group).values()) == RECORDS


def was_killed(job, points):
    """Whether a process was killed at each of the points."""
    return all(f"crash: {point}: 0" not in job.output() for point in points) and all(
        f"crash: {point}: " in job.output() for point in points
    )


@pytest.mark.long
def test_exactly_once_holds_wherever_an_executor_is_killed(job, group_offsets):
    points = EXECUTOR_POINTS if IS_LONG else SHORT_OF_EXECUTORS
    assert job.run(",".join(points), 1, master=CLUSTER) == 0, job.output()
    assert was_killed(job, points), job.output()
    assert job.rows() == ALL
    assert_invariants(job, group_offsets)
    assert sum(group_offsets(job.group).values()) == RECORDS


@only_long
def test_state_survives_executors_wherever_they_are_killed(job, group_offsets):
    points = EXECUTOR_POINTS
    assert job.run(",".join(points), 1, master=CLUSTER, is_stateful=True) == 0, job.output()
    assert was_killed(job, points), job.output()
    assert job.rows() == Counter({(at, RECORDS // 2): 1 for at in (0, 1)})
    assert sum(group_offsets(job.group).values()) == RECORDS


@only_long
def test_at_least_once_loses_nothing_wherever_an_executor_is_killed(job):
    points = [each for each in EXECUTOR_POINTS if "staged" not in each]
    status = job.run(",".join(points), 1, master=CLUSTER, delivery="at-least-once")
    assert status == 0, job.output()
    assert was_killed(job, points), job.output()
    assert set(job.rows()) == set(ALL)


@only_long
@pytest.mark.parametrize("point", ["worker-after-a-task", "executor-after-a-task"])
def test_at_most_once_no_task_is_tried_again(job, point):
    options = {"delivery": "at-most-once", "master": CLUSTER}
    # What was killed fails the batch; the next driver goes on behind it.
    assert job.run(point, 1, **options) == 1, job.output()
    assert was_killed(job, [point]), job.output()
    assert job.run(**options) == 0, job.output()
    found = job.rows()
    assert max(found.values()) == 1
    assert sum((ALL - found).values()) <= RECORDS_A_BATCH


@only_long
@pytest.mark.parametrize("point", POINTS)
def test_at_most_once_loses_no_more_than_the_batch_in_work_and_repeats_nothing(job, point):
    assert job.run(point, 1, delivery="at-most-once") == -signal.SIGKILL, job.output()
    assert job.run(delivery="at-most-once") == 0, job.output()
    found = job.rows()
    assert max(found.values()) == 1
    lost = ALL - found
    assert sum(lost.values()) <= RECORDS_A_BATCH
    # The group's offsets are committed by another thread, when the next batch may be in work.
    in_work = {1, 2} if point == "group-commit" else {1}
    assert {position // (RECORDS_A_BATCH // 2) for _, position in lost} <= in_work


@only_long
@pytest.mark.parametrize("point", POINTS)
def test_at_least_once_loses_nothing_and_repeats_no_more_than_the_batch_in_work(job, point):
    assert job.run(point, 1, delivery="at-least-once") == -signal.SIGKILL, job.output()
    assert job.run(delivery="at-least-once") == 0, job.output()
    found = job.rows()
    assert not ALL - found
    assert sum((found - ALL).values()) <= RECORDS_A_BATCH


@only_long
def test_a_zombie_that_wakes_after_its_successor_ran_changes_nothing(job, group_offsets):
    zombie = job.start()
    wait_until(lambda: sum(job.rows().values()) == RECORDS, STEP_SECONDS, "the rows")
    last = job.checkpoint / "commits" / str(RECORDS // RECORDS_A_BATCH - 1)
    wait_until(last.exists, STEP_SECONDS, "the end of the last batch")
    family = [psutil.Process(zombie.pid), *psutil.Process(zombie.pid).children(recursive=True)]
    for process in family:
        process.suspend()
    shutil.rmtree(job.checkpoint / "commits")  # a successor that has batches to replay
    assert job.run() == 0, job.output()
    for process in family:
        process.resume()
    producer = Producer({"bootstrap.servers": job._bootstrap})
    producer.produce(job.topic, "one more", partition=0)
    assert producer.flush(30) == 0
    wait_until(lambda: not zombie.is_running, STEP_SECONDS, "the zombie's end")
    # By the job's own fence, or by Spark's look at the checkpoint that another has written: it may
    # have been stopped between the renaming of a commit's file and that of its checksum.
    said = zombie.log_path.read_text()
    fences = r"is fenced and ends|are concurrently using|\.tmp(\.crc)? does not exist"
    assert re.search(fences, said), said
    assert job.rows() == ALL
    assert job.run() == 0, job.output()
    assert job.rows() == ALL + Counter({(0, RECORDS // 2): 1})
    assert_invariants(job, group_offsets)


@only_long
def test_a_stateless_job_that_lost_its_checkpoint_goes_on_from_the_table(job):
    assert job.run("after-commit", 3) == -signal.SIGKILL, job.output()
    shutil.rmtree(job.checkpoint)
    assert job.run() == 0, job.output()
    assert "going on from what the sinks hold" in job.output()
    assert job.rows() == ALL


def test_a_stateful_job_that_lost_its_checkpoint_is_refused_with_instructions(job):
    assert job.run("written", 3, is_stateful=True) == -signal.SIGKILL, job.output()
    before = job.rows()
    shutil.rmtree(job.checkpoint)
    assert job.run(is_stateful=True) == 1
    assert "The job has state" in job.output()
    assert "--generation" in job.output()
    assert job.rows() == before
