"""Drivers, executors and sinks' servers killed with SIGKILL at every step of a batch; zombies.

The job appends each record's position to a sink without a key: a record that is lost or repeated
shows. `HEADRACE_CRASHES=all` (`make crashes`) runs every point for every sink and delivery.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from headrace_jobs.durable import replace_file
from headrace_jobs.jars import resolve
from headrace_jobs.progress.checkpoint import committed_position
from headrace_jobs.session import LOG4J_CONFIGURATION
from support.counted_sinks import CountedFiles, CountedIndex, CountedTable, CountedTopic
from support.crash_points import EXECUTOR_POINTS, POINTS
from support.processes import ManagedProcess, wait_until
from support.shared_classes import shared_class_options
from support.spark_driver import python_path
from support.spark_home import writable_spark_home

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

JAVA_OPTIONS = (
    f"-Dlog4j2.configurationFile={LOG4J_CONFIGURATION.as_uri()} "
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
)
#: As many batches as a sink has points, and one.
RECORDS = 96
RECORDS_A_BATCH = 8
#: Of each batch and partition; an index has no more documents.
SLOTS = RECORDS_A_BATCH // 2
STEP_SECONDS = 600
IS_LONG = os.environ.get("HEADRACE_CRASHES") == "all"
SHORT = ("in-a-task", "after-commit")
SHORT_OF_EXECUTORS = ("worker-after-a-task", "executor-in-a-task")
#: Where a driver is stopped that wakes when its successor has gone on.
STOPS = ("in-a-task", "half-sent", "staged", "before-commit", "after-commit", "group-commit")
SERVERS_POINTS = {
    "postgres": ("in-a-task", "staged", "before-commit", "answer-lost", "after-commit"),
    "search": ("in-a-task", "staged", "after-commit"),
    "kafka": (
        *("in-a-task", "half-sent", "staged", "half-of-the-offsets"),
        *("before-commit", "committing", "after-commit"),
    ),
}
#: Two executors, each a JVM with one core and 512 MiB.
CLUSTER = "local-cluster[2,1,512]"
#: Each start of a driver is a JVM's: the short form has few, and `test_delivery` the rest.
only_long = pytest.mark.skipif(not IS_LONG, reason="the long form: make crashes")
OTHERS = [pytest.param(kind, marks=only_long) for kind in POINTS if kind != "postgres"]
every_sink = pytest.mark.parametrize("job", ["postgres", *OTHERS], indirect=True)


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


def status_of(process):
    """The status of a process that is there; None of one that has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        status = process.status()
        return None if status == psutil.STATUS_ZOMBIE else status


class CountedJob:
    """The job's drivers, one after the other or at once, on one checkpoint and one sink."""

    def __init__(self, directory, sink, bootstrap, topic):
        self.directory = directory
        self.checkpoint = directory / "checkpoint"
        self.topic = topic
        self.sink = sink
        self.group = f"group-{Path(sink.table).name}"
        self._bootstrap = bootstrap
        self._log_number = 0
        self._struck = directory / "struck"
        self._struck.mkdir()
        self._server_pid = directory / "server.pid"
        self._server_pid.touch()
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
        self.revive()
        environment = {
            "PYTHONPATH": python_path(),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": submit(master),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "COUNTED_STATEFUL": "1" if is_stateful else "0",
            "COUNTED_SLOTS": str(SLOTS),
            "CRASH_STRUCK": str(self._struck),
            "CRASH_SERVER": str(self._server_pid),
            **self.sink.environment,
        }
        if master == CLUSTER:
            environment["SPARK_HOME"] = writable_spark_home(self.directory)
        log = self.directory / f"driver-{self._log_number}.log"
        self.drivers.append(ManagedProcess(command, log, environment))
        return self.drivers[-1]

    def run(self, point="none", batch_id=-1, **options):
        """Run a driver until it has read all or was killed; returns its exit status."""
        driver = self.start("--available-now", point=point, batch_id=batch_id, **options)
        wait_until(lambda: self.revive() or not driver.is_running, STEP_SECONDS, "the driver's end")
        return driver.exit_status

    def run_to_stop(self, point, batch_id):
        """Run a driver until it is stopped; returns its processes."""
        driver = self.start("--available-now", point=f"stop:{point}", batch_id=batch_id)

        def family():
            root = psutil.Process(driver.pid)
            found = [root, *root.children(recursive=True)]
            return {each: status for each in found if (status := status_of(each))}

        def has_stopped():
            assert driver.is_running, (point, self.output())
            return set(family().values()) == {psutil.STATUS_STOPPED}

        wait_until(has_stopped, STEP_SECONDS, f"the driver to be stopped {point}")
        return driver, list(family())

    def revive(self):
        """Start the sink's server again if it was killed, and note which process it is."""
        server = self.sink.server
        if server is None:
            return
        if not server.is_running:
            time.sleep(2)  # what asks it meanwhile finds nobody
            server.start()
        if self._server_pid.read_text() != str(server.pid):
            replace_file(self._server_pid, str(server.pid))

    def struck(self):
        """The points that were struck."""
        return {path.name for path in self._struck.iterdir()}

    def output(self):
        return self.drivers[-1].log_path.read_text(errors="replace")

    def rows(self):
        """How often the sink has each position."""
        return self.sink.rows()

    def stored(self):
        """The offsets that the sink has stored, by partition."""
        return self.sink.stored(self.topic)

    def close(self):
        for driver in self.drivers:
            # A JVM that is stopped does not see its driver end.
            family = (
                psutil.Process(driver.pid).children(recursive=True) if driver.is_running else ()
            )
            driver.kill()
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


@pytest.fixture
def job(request, tmp_path, broker, new_topic, group_offsets):
    topic = new_topic(2)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, str(number), partition=number % 2)
    assert producer.flush(30) == 0
    kind = getattr(request, "param", "postgres")
    if kind == "postgres":
        sink = CountedTable(request.getfixturevalue("postgres"))
    elif kind == "search":
        sink = CountedIndex(request.getfixturevalue("opensearch"))
    elif kind == "kafka":
        sink = CountedTopic(broker, group_offsets)
    else:
        sink = CountedFiles(kind, tmp_path / f"table-{topic}")
    found = CountedJob(tmp_path, sink, broker.bootstrap, topic)
    yield found
    found.close()


ALL = Counter({(number % 2, number // 2): 1 for number in range(RECORDS)})


def expected_rows(sink):
    """What the sink has when the job is done."""
    if sink.kind != "search":
        return ALL
    return Counter({place: 1 for place in ALL if place[1] >= RECORDS // 2 - SLOTS})


def assert_invariants(job, group_offsets):
    """Stored offsets match stored rows; the group is never ahead of the checkpoint."""
    stored = job.stored()
    rows = job.rows()
    if job.sink.kind == "search":
        # Documents of the batch in work may be there already, in place of those of the one before.
        for at, position in rows:
            assert stored.get(at, 0) - SLOTS <= position < stored.get(at, 0) + SLOTS, (stored, rows)
        assert all(sum(place[0] == at for place in rows) == SLOTS for at in stored), (stored, rows)
    else:
        assert max(rows.values(), default=1) == 1, rows
        held = Counter(at for at, _ in rows)
        assert {at: held[at] for at in {*stored, *held}} == {**dict.fromkeys(held, 0), **stored}
    committed = committed_position(str(job.checkpoint))
    for at, offset in group_offsets(job.group).items():
        # A topic's transaction moves the group, with the rows.
        ahead = stored.get(at[1], 0) if job.sink.kind == "kafka" else 0
        assert offset <= max(committed.get(at, 0), ahead)


def assert_done(job, group_offsets):
    """Everything is there once, and the group says so."""
    assert job.rows() == expected_rows(job.sink)
    assert_invariants(job, group_offsets)
    assert sum(group_offsets(job.group).values()) == RECORDS


@every_sink
def test_exactly_once_holds_wherever_the_driver_is_killed(job, group_offsets):
    points = POINTS[job.sink.kind] if IS_LONG else SHORT
    for batch_id, point in enumerate(points):
        assert job.run(point, batch_id) == -signal.SIGKILL, (point, job.output())
        assert_invariants(job, group_offsets)
    assert job.run() == 0, job.output()
    assert_done(job, group_offsets)


def was_killed(job, points):
    """Whether a process was killed at each of the points."""
    return all(f"crash: {point}: 0" not in job.output() for point in points) and all(
        f"crash: {point}: " in job.output() for point in points
    )


@every_sink
@pytest.mark.long
def test_exactly_once_holds_wherever_an_executor_is_killed(job, group_offsets):
    points = EXECUTOR_POINTS if IS_LONG else SHORT_OF_EXECUTORS
    assert job.run(",".join(points), 1, master=CLUSTER) == 0, job.output()
    assert was_killed(job, points), job.output()
    assert_done(job, group_offsets)


@only_long
@pytest.mark.parametrize("job", SERVERS_POINTS, indirect=True)
def test_exactly_once_holds_wherever_the_sinks_server_is_killed(job, group_offsets):
    points = [f"server:{each}" for each in SERVERS_POINTS[job.sink.kind]]
    for _ in range(len(points) + 1):
        # A driver that finds a way to go on does; one that fails is started again, as ever.
        if job.run(",".join(points), 1) == 0:
            break
        assert_invariants(job, group_offsets)
    else:
        pytest.fail(job.output())
    assert job.struck() == set(points)
    assert_done(job, group_offsets)


@only_long
@every_sink
def test_a_zombie_that_wakes_in_a_batch_that_its_successor_wrote_changes_nothing(
    job, group_offsets
):
    zombie = None
    points = [each for each in STOPS if each in POINTS[job.sink.kind]]
    for batch_id, point in enumerate([*points, "none"], start=1):
        if point == "none":
            assert job.run() == 0, job.output()
            successor = None
        else:
            successor = job.run_to_stop(point, batch_id)
        if zombie is not None:
            wake(job, *zombie, group_offsets)
        zombie = successor
    assert_done(job, group_offsets)


def wake(job, driver, family, group_offsets):
    """Wake a driver that was replaced, and see that it ends and changes nothing."""
    rows, stands = job.rows(), group_offsets(job.group)
    for process in family:
        process.resume()
    wait_until(lambda: not driver.is_running, STEP_SECONDS, "the zombie's end")
    said = driver.log_path.read_text(errors="replace")
    assert driver.exit_status == 1, said
    assert (job.rows(), group_offsets(job.group)) == (rows, stands), said
    assert_invariants(job, group_offsets)


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
@pytest.mark.parametrize("point", POINTS["postgres"][1:])
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
@pytest.mark.parametrize("point", POINTS["postgres"][1:])
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
