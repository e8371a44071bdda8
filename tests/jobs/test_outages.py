"""Servers that are away for a while, in the middle of a batch: real ones, killed and started."""

import contextlib
import dataclasses
import threading
import time
import uuid
from types import SimpleNamespace

import pytest
from opensearchpy.helpers import scan
from structlog.testing import capture_logs

from headrace_jobs import outages
from headrace_jobs.declaration import Delivery
from headrace_jobs.jobs.startup import JobError, when_servers_answer
from headrace_jobs.outages import AwayError, Outage
from headrace_jobs.progress.offsets import TopicPartition
from headrace_jobs.progress.stored import Batch
from headrace_jobs.sinks.postgres import PostgresTable
from headrace_jobs.sinks.protocol import Run
from headrace_jobs.sinks.search import SearchIndex
from headrace_jobs.sinks.search_marker import search_client
from support.refusing_proxy import refusing_proxy

pytestmark = [pytest.mark.spark, pytest.mark.slow]

P0 = TopicPartition("in", 0)
ROWS = 30_000
AWAY_SECONDS = 5


def batch(batch_id):
    """A batch of ten records."""
    begin, end = {P0: batch_id * 10}, {P0: batch_id * 10 + 10}
    return Batch(batch_id=batch_id, checkpoint="c", begin=begin, end=end)


class NeverStopped:
    is_requested = False

    def wait(self, seconds):
        time.sleep(seconds)


class Pause:
    """Rows of one task that goes on behind its first ones when it is told."""

    def __init__(self, folder):
        self._first, self._go_on = folder / "first", folder / "go-on"

    def frame(self, spark):
        first, go_on = str(self._first), str(self._go_on)

        def slowly(batches):
            from pathlib import Path

            for each in batches:
                yield each
                Path(first).touch()
                while not Path(go_on).exists():
                    time.sleep(0.05)

        rows = spark.range(ROWS).selectExpr("concat('k', id) AS k", "CAST(id AS INT) AS v")
        return rows.coalesce(1).mapInArrow(slowly, rows.schema)

    def wait(self):
        while not self._first.exists():
            time.sleep(0.05)

    def go_on(self):
        self._go_on.touch()


@contextlib.contextmanager
def away_in_mid_batch(kill, start, pause, seconds=AWAY_SECONDS):
    """Kill a server while the batch is written, and start it again after so many seconds."""

    def strike():
        pause.wait()
        try:
            kill()
        finally:
            pause.go_on()
        time.sleep(seconds)
        start()

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        yield
    finally:
        pause.go_on()
        thread.join()


def wait_for_ever(outage):
    while True:
        outage.wait("gone")


@pytest.fixture
def open_sink():
    """Return a function that opens a sink, which is closed in the end."""
    with contextlib.ExitStack() as cleanup:

        def open_sink(sink, delivery=Delivery.EXACTLY_ONCE):
            run = Run(job="orders", generation=1, delivery=delivery, bootstrap_servers="")
            writer = sink.open(run)
            cleanup.callback(writer.close)
            return writer

        yield open_sink


def documents(sink):
    client = search_client([sink.hosts])
    client.indices.refresh(index=sink.index)
    found = {}
    for each in scan(client, index=sink.index, size=5_000):
        assert each["_id"] not in found
        found[each["_id"]] = each["_source"]["v"]
    return found


EXPECTED = {f"k{number}": number for number in range(ROWS)}


@pytest.fixture
def index(opensearch):
    return SearchIndex(index=f"i-{uuid.uuid4().hex[:8]}", key=("k",), hosts=opensearch.url)


@pytest.fixture
def table(postgres):
    return PostgresTable(table=f"t_{uuid.uuid4().hex[:8]}", dsn=postgres.dsn)


def test_a_search_server_that_is_killed_in_mid_batch_is_waited_for(
    spark, opensearch, index, tmp_path, monkeypatch, open_sink
):
    # A start of the server takes as long as the machine is busy.
    monkeypatch.setattr(outages, "OUTAGE_SECONDS_MAX", 600.0)
    writer, pause = open_sink(index), Pause(tmp_path)
    with away_in_mid_batch(opensearch.kill, opensearch.start, pause):
        writer.write(pause.frame(spark), batch(0))
    assert documents(index) == EXPECTED
    assert open_sink(index).stored.offsets == {P0: 10}


@pytest.fixture
def answers(opensearch):
    """A server in front of OpenSearch; what is put into `refusals` it answers itself."""
    with refusing_proxy(opensearch.url) as proxy:
        yield proxy


@pytest.mark.parametrize("status", [429, 503, 0])
def test_a_request_that_is_refused_for_now_is_made_again(spark, index, answers, status, open_sink):
    """By an overloaded server, a node that starts, and one that hangs up."""
    writer = open_sink(dataclasses.replace(index, hosts=answers.url))
    answers.refusals += [status] * 4
    with capture_logs() as said:
        writer.write(spark.createDataFrame([("a", 1)], "k STRING, v INT"), batch(0))
    assert not answers.refusals
    assert documents(index) == {"a": 1}
    assert open_sink(index).stored.batch_id == 0
    (warning,) = [each for each in said if each["log_level"] == "warning"]
    assert warning["server"] == f"the search server {answers.url}"


@pytest.mark.parametrize("status", [429, 503])
def test_documents_that_are_refused_for_now_are_sent_again_alone(
    spark, index, answers, status, open_sink
):
    writer = open_sink(dataclasses.replace(index, hosts=answers.url))
    answers.refused_documents["b"] = [status] * 3
    rows = [(name, number) for number, name in enumerate("abc")]
    writer.write(spark.createDataFrame(rows, "k STRING, v INT").coalesce(1), batch(0))
    assert documents(index) == dict(rows)
    assert answers.bulk_sizes == [3, 1, 1, 1]


def test_a_search_server_that_stays_away_fails_the_batch_and_says_what_was_tried(
    spark, index, answers, monkeypatch, open_sink
):
    monkeypatch.setattr(outages, "OUTAGE_SECONDS_MAX", 2.0)
    frame = spark.createDataFrame([("a", 1)], "k STRING, v INT")
    writer = open_sink(dataclasses.replace(index, hosts=answers.url))
    expected = rf"search server {answers.url} .*asked \d+ times in \d s.*the next driver"
    answers.refused_documents["a"] = [429] * 100
    with pytest.raises(Exception, match=f"1 documents are refused for now.*|{expected}"):
        writer.write(frame, batch(0))
    answers.refused_documents.clear()
    answers.refusals += [0] * 1000
    with pytest.raises(AwayError, match=expected):
        writer.write(frame, batch(0))
    answers.refusals.clear()
    assert open_sink(index).stored.batch_id == -1
    open_sink(index).write(frame, batch(0))
    assert documents(index) == {"a": 1}


def test_a_job_that_starts_waits_for_its_sinks_server_as_for_its_brokers(index, answers, open_sink):
    settings = SimpleNamespace(startup_timeout_seconds=60)
    sink = dataclasses.replace(index, hosts=answers.url)
    answers.refusals += [503] * 8
    writer = when_servers_answer(lambda: open_sink(sink), settings, NeverStopped())
    assert writer.stored.epoch == 1
    answers.refusals += [503] * 1000
    settings.startup_timeout_seconds = 1
    with pytest.raises(JobError, match=r"gave up after 1 s: no search server lets us in"):
        when_servers_answer(lambda: open_sink(sink), settings, NeverStopped())


def test_passwords_of_servers_are_in_no_message():
    client = search_client(["http://me:secret@127.0.0.1:1"], outage_seconds_max=0.1)
    with pytest.raises(AwayError, match=r"http://127\.0\.0\.1:1") as error:
        client.info()
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("delivery", [Delivery.EXACTLY_ONCE, Delivery.AT_LEAST_ONCE])
def test_a_database_that_is_killed_in_mid_batch_is_waited_for(
    spark, postgres, table, tmp_path, delivery, open_sink
):
    writer, pause = open_sink(table, delivery), Pause(tmp_path)
    with away_in_mid_batch(postgres.crash, postgres.start, pause):
        writer.write(pause.frame(spark), batch(0))
    found = postgres.query(f"SELECT k, v FROM {table.table}")  # noqa: S608 - ours
    assert len(found) == ROWS
    assert dict(found) == EXPECTED
    assert open_sink(table, delivery).stored.offsets == {P0: 10}


def test_a_database_that_stays_away_fails_the_batch_and_says_what_was_tried(
    spark, postgres, table, tmp_path, monkeypatch, open_sink
):
    monkeypatch.setattr(outages, "OUTAGE_SECONDS_MAX", 2.0)
    writer, pause = open_sink(table), Pause(tmp_path)
    with (
        pytest.raises(AwayError, match=r"PostgreSQL .*asked \d+ times in \d+ s.*the next driver"),
        away_in_mid_batch(postgres.crash, postgres.start, pause, 2 * AWAY_SECONDS),
    ):
        writer.write(pause.frame(spark), batch(0))
    assert open_sink(table).stored.batch_id == -1


def test_intervals_grow_and_the_last_one_ends_with_the_time(monkeypatch):
    slept = []
    now = 1000.0

    def sleep(seconds):
        nonlocal now
        slept.append(seconds)
        now += seconds

    monkeypatch.setattr(outages.time, "sleep", sleep)
    monkeypatch.setattr(outages.time, "monotonic", lambda: now)
    outage = Outage("the server", 60.0)
    with pytest.raises(AwayError, match=r"the server .*asked 17 times in 60 s.*: gone"):
        wait_for_ever(outage)
    assert slept[:6] == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0]
    assert slept == sorted(slept[:-1]) + slept[-1:]
    assert sum(slept) == 60.0
