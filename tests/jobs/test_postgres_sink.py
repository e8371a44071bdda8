"""Rows and progress in one transaction of a real PostgreSQL, from Debian's package."""

import contextlib
import dataclasses
import datetime as dt
import decimal
import tempfile
import threading
import uuid
from pathlib import Path

import psycopg
import pytest
from structlog.testing import capture_logs

from faults.disk import can_mount, fill, small_disk
from headrace_jobs import outages
from headrace_jobs.declaration import Delivery
from headrace_jobs.outages import AwayError
from headrace_jobs.progress.offsets import TopicPartition
from headrace_jobs.progress.stored import Batch, FencedError, GapError
from headrace_jobs.sinks.postgres import PostgresTable
from headrace_jobs.sinks.protocol import Run, SinkAwayError, SinkError
from support.holding_proxy import HoldingProxy
from support.postgres import running_pooler
from support.processes import LOOPBACK

pytestmark = pytest.mark.spark

P0 = TopicPartition("in", 0)
EVERY_DELIVERY = pytest.mark.parametrize("delivery", list(Delivery))


def batch(batch_id, checkpoint="c"):
    """A batch of ten records."""
    return Batch(
        batch_id=batch_id,
        checkpoint=checkpoint,
        begin={P0: batch_id * 10},
        end={P0: batch_id * 10 + 10},
    )


@pytest.fixture
def sink(postgres):
    return PostgresTable(table=f"t_{uuid.uuid4().hex[:8]}", key=("k",), dsn=postgres.dsn)


@pytest.fixture
def open_sink(sink):
    """Open the sink as a new driver does."""
    with contextlib.ExitStack() as stack:

        def open_it(delivery=Delivery.EXACTLY_ONCE, job="orders", generation=1, sink=sink):
            run = Run(
                job=job,
                generation=generation,
                delivery=delivery,
                bootstrap_servers="",
                is_shadow=generation > 1,
            )
            writer = sink.open(run)
            stack.callback(writer.close)
            return writer

        yield open_it


def rows(spark, **values):
    return spark.createDataFrame(list(values.items()), "k STRING, v INT")


def table(postgres, sink):
    return dict(postgres.query(f"SELECT k, v FROM {sink.table}"))  # noqa: S608 - a test's own name


@EVERY_DELIVERY
def test_rows_are_merged_by_key_and_progress_is_stored(spark, postgres, sink, open_sink, delivery):
    writer = open_sink(delivery)
    writer.write(rows(spark, a=1, b=2), batch(0))
    writer.write(rows(spark, b=3, c=4), batch(1))
    assert table(postgres, sink) == {"a": 1, "b": 3, "c": 4}
    stored = open_sink(delivery).stored
    assert (stored.epoch, stored.batch_id, stored.offsets) == (2, 1, {P0: 20})


@EVERY_DELIVERY
def test_a_batch_that_comes_again_changes_nothing(spark, postgres, sink, open_sink, delivery):
    writer = open_sink(delivery)
    writer.write(rows(spark, a=1), batch(0))
    writer.write(rows(spark, a=2), batch(0))
    assert table(postgres, sink) == {"a": 1}


@EVERY_DELIVERY
def test_a_zombie_is_fenced_in_the_database(spark, postgres, sink, open_sink, delivery):
    zombie = open_sink(delivery)
    zombie.write(rows(spark, a=1), batch(0))
    successor = open_sink(delivery)
    with pytest.raises(FencedError):
        zombie.write(rows(spark, a=666), batch(1))
    successor.write(rows(spark, a=2), batch(1))
    with pytest.raises(FencedError):
        zombie.write(rows(spark, a=666), batch(1))
    assert table(postgres, sink) == {"a": 2}


def test_a_zombie_that_had_staged_already_is_fenced_at_the_merge(
    spark, postgres, sink, open_sink, monkeypatch
):
    zombie = open_sink()
    zombie.write(rows(spark, a=1), batch(0))
    transact = zombie._store.transact

    def wake_late(*arguments):
        open_sink().write(rows(spark, a=2), batch(1))
        return transact(*arguments)

    monkeypatch.setattr(zombie._store, "transact", wake_late)
    # The successor has dropped what the zombie staged, or its epoch is another: either way nothing.
    with pytest.raises((FencedError, psycopg.errors.UndefinedTable)):
        zombie.write(rows(spark, a=666), batch(1))
    assert table(postgres, sink) == {"a": 2}


@pytest.mark.parametrize("is_fenced", [True, False])
def test_a_zombie_task_at_least_once_overwrites_no_newer_row(
    spark, postgres, sink, open_sink, monkeypatch, is_fenced
):
    """A task of a driver that is gone, or an attempt that was given up, comes to its merge late."""
    from headrace_jobs.sinks import postgres as module

    copy_rows, late = module.copy_rows, []
    zombie = open_sink(Delivery.AT_LEAST_ONCE)
    zombie.write(rows(spark, a=1), batch(0))

    def twice(*arguments):
        late.append(arguments)
        return copy_rows(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, "copy_rows", twice)
        if is_fenced:
            patch.setattr(zombie._store, "transact", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                zombie.write(rows(spark, a=2), batch(1))
        else:
            zombie.write(rows(spark, a=2), batch(1))
    # Before a later batch is merged a second merge is harmless.
    if is_fenced:
        copy_rows(*late[0])
    assert table(postgres, sink) == {"a": 2}
    driver = open_sink(Delivery.AT_LEAST_ONCE) if is_fenced else zombie
    if is_fenced:
        driver.write(rows(spark, a=2), batch(1))
    driver.write(rows(spark, a=3), batch(2))
    with pytest.raises(Exception, match="FencedError"):
        copy_rows(*late[0])
    assert table(postgres, sink) == {"a": 3}


def test_a_row_without_a_version_is_older_than_every_other(spark, postgres, sink, open_sink):
    newest = PostgresTable(table=sink.table, key=("k",), version="v", dsn=sink.dsn)
    writer = open_sink(sink=newest)
    schema = "k STRING, v INT, t STRING"

    def write(number, *found):
        writer.write(spark.createDataFrame(found, schema), batch(number))

    write(0, ("a", None, "x"), ("a", -5, "y"), ("a", None, "z"), ("b", None, "x"))
    write(1, ("a", None, "x"), ("b", None, "y"), ("c", None, "x"))
    write(2, ("c", 0, "y"))
    found = postgres.query(f"SELECT k, v, t FROM {sink.table} ORDER BY k")  # noqa: S608 - as above
    assert found == [("a", -5, "y"), ("b", None, "y"), ("c", 0, "y")]


@EVERY_DELIVERY
def test_several_rows_of_a_key_and_no_version_are_refused_with_the_ways_out(
    spark, postgres, sink, open_sink, delivery
):
    writer = open_sink(delivery)
    twice = spark.createDataFrame([("a", 1), ("a", 2)], "k STRING, v INT").coalesce(1)
    with pytest.raises(Exception, match=r"several rows .* Name `version`.* aggregate by the key"):
        writer.write(twice, batch(0))
    assert table(postgres, sink) == {}
    assert sink.wants_each_key_once
    assert not dataclasses.replace(sink, version="v").wants_each_key_once


def test_a_gap_is_refused(spark, open_sink):
    writer = open_sink()
    writer.write(rows(spark, a=1), batch(0))
    with pytest.raises(GapError):
        writer.write(rows(spark, a=2), batch(2))


def test_generations_and_jobs_have_progress_of_their_own(spark, open_sink):
    open_sink().write(rows(spark, a=1), batch(0))
    assert open_sink(generation=2).stored.offsets == {}
    assert open_sink(job="others").stored.offsets == {}


def test_rows_of_a_task_attempt_that_does_not_count_are_left_out(
    spark, postgres, sink, open_sink, monkeypatch
):
    """An executor is killed after its COPY: the task runs again, and both attempts are staged."""
    from headrace_jobs.sinks import postgres as module

    copy_rows = module.copy_rows

    def twice(frame, conninfo, table, merge):
        copy_rows(frame, conninfo, table, merge)
        return copy_rows(frame, conninfo, table, merge)

    monkeypatch.setattr(module, "copy_rows", twice)
    append = PostgresTable(table=sink.table, dsn=sink.dsn)
    open_sink(sink=append).write(rows(spark, a=1, b=2), batch(0))
    found = postgres.query(f"SELECT k, v FROM {sink.table} ORDER BY k")  # noqa: S608 - as above
    assert found == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_lost_answer_to_commit_is_read_back_never_guessed(
    spark, postgres, sink, open_sink, monkeypatch, is_committed
):
    """The connection ends before the COMMIT, or after it: nobody who asked can tell which."""
    append = PostgresTable(table=sink.table, dsn=sink.dsn)
    writer = open_sink(sink=append)
    writer.write(rows(spark, a=1), batch(0))
    store = writer._store
    once, lost = store._transact_once, []

    def lose_the_answer(*arguments):
        if lost:
            return once(*arguments)
        lost.append(True)
        if is_committed:
            once(*arguments)
        else:
            store._lock()
        store._connection.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(store, "_transact_once", lose_the_answer)
    writer.write(rows(spark, b=2), batch(1))
    assert sorted(postgres.query(f"SELECT k FROM {sink.table}")) == [("a",), ("b",)]  # noqa: S608


def test_a_connection_that_is_lost_with_each_transaction_fails_the_batch_in_time(
    spark, postgres, sink, open_sink, monkeypatch
):
    """A pooler that ends what takes long, or a server that this batch crashes each time."""
    monkeypatch.setattr(outages, "OUTAGE_SECONDS_MAX", 2.0)
    writer = open_sink()
    writer.write(rows(spark, a=1), batch(0))
    store, lost = writer._store, []

    def lose_it(*_):
        lost.append(True)
        assert len(lost) < 20, "asked without end"
        store._lock()
        store._connection.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as patch:
        patch.setattr(store, "_transact_once", lose_it)
        with pytest.raises(AwayError, match="ends the connection with each attempt"):
            writer.write(rows(spark, b=2), batch(1))
    assert table(postgres, sink) == {"a": 1}
    open_sink().write(rows(spark, b=2), batch(1))
    assert table(postgres, sink) == {"a": 1, "b": 2}


def test_a_commit_that_arrives_after_its_driver_gave_up_counts_once(
    spark, postgres, sink, open_sink, monkeypatch
):
    """The driver is cut off, connects again and asks; meanwhile the COMMIT is on its way."""
    with HoldingProxy((LOOPBACK, postgres.port)) as proxy:
        dsn = postgres.dsn.replace(f"port={postgres.port}", f"port={proxy.port}")
        writer = open_sink(sink=PostgresTable(table=sink.table, dsn=dsn))
        writer.write(rows(spark, a=1), batch(0))
        store = writer._store
        keep, begun = store._store, []

        def store_and_hold(progress):
            keep(progress)
            if not begun:
                proxy.hold(b"COMMIT", 3)
            begun.append(progress)

        monkeypatch.setattr(store, "_store", store_and_hold)
        writer.write(rows(spark, b=2), batch(1))
        assert proxy.has_held.is_set()
        assert proxy.has_delivered.wait(60)
        # It waited for the lock of the transaction that was in doubt, and found it done.
        assert len(begun) == 1
        assert sorted(postgres.query(f"SELECT k FROM {sink.table}")) == [("a",), ("b",)]  # noqa: S608
        writer.write(rows(spark, c=3), batch(2))
        assert writer.stored.batch_id == 2


def test_a_server_that_crashes_after_staging_costs_time_and_no_row(
    spark, postgres, sink, open_sink, monkeypatch
):
    writer = open_sink()
    writer.write(rows(spark, a=1), batch(0))
    transact, crashed = writer._store.transact, []

    def crash_first(*arguments):
        if not crashed:
            crashed.append(True)
            postgres.crash()
            postgres.start()
        return transact(*arguments)

    monkeypatch.setattr(writer._store, "transact", crash_first)
    # What is staged is not logged, so recovery empties it: that must never count as no rows.
    with capture_logs() as said:
        writer.write(rows(spark, b=2), batch(1))
    assert any("1 rows were staged and 0 are there" in each.get("reason", "") for each in said)
    assert table(postgres, sink) == {"a": 1, "b": 2}
    assert writer.stored.offsets == {P0: 20}


def within(seconds, work):
    """Do the work in a thread; whether it was done within so many seconds."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    return found


@contextlib.contextmanager
def hanging_copy(postgres, dsn):
    """Hold what a task holds that hangs within its COPY: the lock of its staging table."""
    (staging,) = postgres.query(
        "SELECT tablename FROM pg_tables WHERE tablename LIKE 'headrace_staging_%'"
        " ORDER BY (SELECT oid FROM pg_class WHERE relname = tablename) DESC LIMIT 1"
    )[0]
    with psycopg.connect(dsn) as task:
        task.execute(f"LOCK TABLE {staging} IN ROW EXCLUSIVE MODE")
        yield


def test_a_successor_does_not_wait_for_a_driver_that_hangs_in_its_transaction(
    spark, postgres, sink, open_sink, monkeypatch
):
    """Nor for one on a node that is cut off: the server keeps its connection for two hours."""
    from headrace_jobs.sinks import postgres_rows

    monkeypatch.setattr(postgres_rows, "IDLE_SECONDS_MAX", 1)
    zombie = open_sink()
    zombie.write(rows(spark, a=1), batch(0))
    keep, hangs, wakes = zombie._store._store, threading.Event(), threading.Event()

    def hang(progress):
        keep(progress)
        hangs.set()
        wakes.wait(60)

    monkeypatch.setattr(zombie._store, "_store", hang)
    said = []

    def write():
        try:
            zombie.write(rows(spark, a=666), batch(1))
        except FencedError as error:
            said.append(error)

    writing = threading.Thread(target=write)
    writing.start()
    assert hangs.wait(60)
    opened = within(20, open_sink)
    wakes.set()
    writing.join(60)
    assert opened, "the successor waits"
    opened[0].write(rows(spark, a=2), batch(1))
    assert said
    assert table(postgres, sink) == {"a": 2}


def test_a_successor_does_not_wait_for_a_task_that_hangs_in_its_copy(
    spark, postgres, sink, open_sink, monkeypatch
):
    writer = open_sink()
    writer.write(rows(spark, a=1), batch(0))
    monkeypatch.setattr(writer._store, "transact", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        writer.write(rows(spark, a=666), batch(1))
    with hanging_copy(postgres, sink.dsn):
        opened = within(20, open_sink)
    assert opened, "the successor waits"
    opened[0].write(rows(spark, a=2), batch(1))
    assert table(postgres, sink) == {"a": 2}


def test_a_batch_does_not_wait_for_a_task_that_hangs_and_was_tried_again(
    spark, postgres, sink, open_sink, monkeypatch
):
    from headrace_jobs.sinks import postgres as module

    copy_rows = module.copy_rows
    with contextlib.ExitStack() as stack:

        def copy_and_hang(*arguments):
            attempts = copy_rows(*arguments)
            stack.enter_context(hanging_copy(postgres, sink.dsn))
            return attempts

        writer = open_sink()
        monkeypatch.setattr(module, "copy_rows", copy_and_hang)
        assert within(30, lambda: writer.write(rows(spark, a=1), batch(0))), "the batch waits"
    assert table(postgres, sink) == {"a": 1}


def test_a_batch_that_is_begun_again_does_not_wait_for_a_task_of_its_first_attempt(
    spark, postgres, sink, open_sink, monkeypatch
):
    """A task whose node is cut off: its COPY stays open in the server."""
    from headrace_jobs.sinks import postgres as module

    copy_rows = module.copy_rows
    with contextlib.ExitStack() as stack:

        def hang_at_first(*arguments):
            attempts = copy_rows(*arguments)
            if attempts and not hung:
                hung.append(True)
                stack.enter_context(hanging_copy(postgres, sink.dsn))
                raise SinkAwayError("a task was lost")
            return attempts

        writer, hung = open_sink(), []
        monkeypatch.setattr(module, "copy_rows", hang_at_first)
        began_again = within(60, lambda: writer.write(rows(spark, a=1), batch(0)) or True)
        assert began_again, "the batch waits"
    assert table(postgres, sink) == {"a": 1}


def test_a_server_that_crashes_behind_the_commit_costs_no_batch(
    spark, postgres, sink, open_sink, monkeypatch
):
    writer = open_sink()
    transact = writer._store.transact

    def transact_and_crash(*arguments):
        verdict = transact(*arguments)
        postgres.crash()
        postgres.start()
        return verdict

    with monkeypatch.context() as patch:
        patch.setattr(writer._store, "transact", transact_and_crash)
        writer.write(rows(spark, a=1), batch(0))
    writer.write(rows(spark, b=2), batch(1))
    assert table(postgres, sink) == {"a": 1, "b": 2}


@contextlib.contextmanager
def table_on_a_small_disk(postgres, table):
    """The sink's table alone is on a disk of its own; yields that disk."""
    if not can_mount():
        pytest.skip("NOT TESTED: mounting a small disk needs root")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with small_disk(Path(folder) / "disk", 8) as disk:
            for path in (disk, disk / "space"):
                path.mkdir(exist_ok=True)
                postgres.own(path)
            space = disk / "space"
            name = f"space_{uuid.uuid4().hex[:8]}"
            postgres.query(f"CREATE TABLESPACE {name} LOCATION '{space}'")
            postgres.query(f"CREATE TABLE {table} (k text, v int) TABLESPACE {name}")
            try:
                yield disk
            finally:
                postgres.query(f"DROP TABLE {table}")
                postgres.query(f"DROP TABLESPACE {name}")


def test_a_full_disk_fails_the_batch_and_is_made_up_for_when_there_is_room(
    spark, postgres, sink, open_sink, monkeypatch
):
    append = PostgresTable(table=sink.table, dsn=sink.dsn)
    many = [("x" * 500, number) for number in range(5_000)]
    frame = spark.createDataFrame(many, "k STRING, v INT")
    with table_on_a_small_disk(postgres, sink.table) as disk:
        writer = open_sink(sink=append)
        writer.write(rows(spark, a=1), batch(0))
        somebody_elses = fill(disk)
        monkeypatch.setattr(outages, "OUTAGE_SECONDS_MAX", 2.0)
        with pytest.raises(AwayError, match=r"refuses the batch: .*No space left on device"):
            writer.write(frame, batch(1))
        assert table(postgres, sink) == {"a": 1}
        # The driver that is started again waits for room, and the batch counts once.
        successor = open_sink(sink=append)
        assert successor.stored.offsets == {P0: 10}
        monkeypatch.setattr(outages, "OUTAGE_SECONDS_MAX", 60.0)
        threading.Timer(3, somebody_elses.unlink).start()
        successor.write(frame, batch(1))
        successor.write(frame, batch(1))
        (count,) = postgres.query(f"SELECT count(*) FROM {sink.table}")  # noqa: S608 - as above
        assert count == (len(many) + 1,)


def test_a_servers_own_timeout_fails_the_batch_and_is_no_endless_repetition(
    spark, postgres, sink, open_sink, monkeypatch
):
    monkeypatch.setattr(outages, "OUTAGE_SECONDS_MAX", 2.0)
    writer = open_sink()
    writer.write(rows(spark, a=1), batch(0))
    postgres.query(
        "CREATE OR REPLACE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_sleep(10); RETURN NEW; END $$"
    )
    postgres.query(
        f"CREATE TRIGGER slow BEFORE INSERT ON {sink.table} FOR EACH ROW EXECUTE FUNCTION linger()"
    )
    slow = dataclasses.replace(sink, dsn=f"{sink.dsn} options='-c statement_timeout=300'")
    with pytest.raises(AwayError, match="refuses the batch: canceling statement"):
        open_sink(sink=slow).write(rows(spark, b=2), batch(1))
    assert table(postgres, sink) == {"a": 1}


def test_at_most_once_stores_progress_first(spark, postgres, sink, open_sink, monkeypatch):
    from headrace_jobs.sinks import postgres as module

    writer = open_sink(Delivery.AT_MOST_ONCE)
    writer.write(rows(spark, a=1), batch(0))
    with monkeypatch.context() as patch:
        patch.setattr(module, "copy_rows", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            writer.write(rows(spark, b=2), batch(1))
    successor = open_sink(Delivery.AT_MOST_ONCE)
    successor.write(rows(spark, b=2), batch(1))
    successor.write(rows(spark, c=3), batch(2))
    assert table(postgres, sink) == {"a": 1, "c": 3}


def test_at_least_once_stores_progress_last(spark, postgres, sink, open_sink, monkeypatch):
    writer = open_sink(Delivery.AT_LEAST_ONCE)
    monkeypatch.setattr(writer._store, "transact", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        writer.write(rows(spark, a=1), batch(0))
    assert table(postgres, sink) == {"a": 1}
    successor = open_sink(Delivery.AT_LEAST_ONCE)
    assert successor.stored.offsets == {}
    successor.write(rows(spark, a=1), batch(0))
    assert table(postgres, sink) == {"a": 1}


def test_the_greater_version_of_a_key_wins_whatever_order_rows_come_in(
    spark, postgres, sink, open_sink
):
    newest = PostgresTable(table=sink.table, key=("k",), version="v", dsn=sink.dsn)
    writer = open_sink(sink=newest)
    twice = spark.createDataFrame([("a", 2), ("a", 5), ("a", 3), ("b", 1)], "k STRING, v INT")
    writer.write(twice, batch(0))
    writer.write(rows(spark, a=4, b=2), batch(1))
    assert table(postgres, sink) == {"a": 5, "b": 2}


def test_every_type_of_a_column_comes_through(spark, postgres, sink, open_sink):
    at = dt.datetime(2026, 1, 31, 12, 0, 0, 250_000)  # noqa: DTZ001 - as Spark gives it, in UTC
    schema = (
        "k STRING, flag BOOLEAN, big BIGINT, usage DOUBLE, price DECIMAL(10,2), raw BINARY,"
        " day DATE, at TIMESTAMP, tags ARRAY<STRING>, empty STRING, nothing STRING"
    )
    price = decimal.Decimal("12.30")
    row = ('a"b,\nc\\', True, 2**40, 0.1, price, b"\x00\xff", at.date(), at, ["x"], "", None)
    frame = spark.createDataFrame([row], schema)
    open_sink().write(frame, batch(0))
    (found,) = postgres.query(f"SELECT * FROM {sink.table}")  # noqa: S608 - a test's own name
    utc = at.replace(tzinfo=dt.UTC)
    assert found == (*row[:7], utc, ["x"], "", None)


def test_what_dead_drivers_staged_is_cleared_away(spark, postgres, open_sink, monkeypatch):
    writer = open_sink()
    monkeypatch.setattr(writer._store, "transact", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        writer.write(rows(spark, a=1), batch(0))
    staged = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'headrace_staging_%'"
    before = postgres.query(staged)[0][0]
    open_sink()
    assert postgres.query(staged)[0][0] == before - 1


def test_a_server_that_is_not_there_is_an_error_that_says_so(open_sink):
    with pytest.raises(SinkError, match="PostgreSQL does not let us in"):
        open_sink(sink=PostgresTable(table="t", dsn="host=127.0.0.1 port=1 dbname=x"))


def test_update_mode_needs_a_key():
    refusal = PostgresTable(table="t").refusal(Delivery.EXACTLY_ONCE, "update")
    assert refusal is not None
    assert "name its key" in refusal


@EVERY_DELIVERY
def test_names_may_be_reserved_words_or_have_a_per_cent_sign(spark, postgres, delivery):
    sink = PostgresTable(
        table=f"load%s_{uuid.uuid4().hex[:8]}",
        key=("user", "cpu%"),
        version="order",
        dsn=postgres.dsn,
    )
    run = Run(job="orders", generation=1, delivery=delivery, bootstrap_servers="")
    columns = "user STRING, `cpu%` INT, `order` INT, `Group By` STRING"
    with contextlib.closing(sink.open(run)) as writer:
        writer.write(spark.createDataFrame([("a", 1, 1, "old")], columns), batch(0))
        writer.write(spark.createDataFrame([("a", 1, 2, "new")], columns), batch(1))
    assert postgres.query(f'SELECT * FROM "{sink.table}"') == [("a", 1, 2, "new")]  # noqa: S608


@EVERY_DELIVERY
def test_a_server_that_was_started_again_between_batches_costs_no_batch(
    spark, postgres, sink, open_sink, delivery
):
    writer = open_sink(delivery)
    writer.write(rows(spark, a=1), batch(0))
    postgres.crash()
    threading.Timer(2, postgres.start).start()
    writer.write(rows(spark, b=2), batch(1))
    assert table(postgres, sink) == {"a": 1, "b": 2}


def test_a_table_that_is_gone_is_not_begun_anew_in_silence(spark, postgres, sink, open_sink):
    open_sink().write(rows(spark, a=1), batch(0))
    postgres.query(f"DROP TABLE {sink.table}")
    with pytest.raises(SinkError, match=r"is gone, .* batch 0 is in it.*--shadow"):
        open_sink()
    # Who wants to go on without the rows makes the table.
    postgres.query(f"CREATE TABLE {sink.table} (k text PRIMARY KEY, v int)")
    open_sink().write(rows(spark, b=2), batch(1))
    assert table(postgres, sink) == {"b": 2}


def test_a_user_without_rights_is_told_which_it_needs_and_needs_no_more(spark, postgres, sink):
    poor = f"poor_{uuid.uuid4().hex[:8]}"
    postgres.query(f"CREATE ROLE {poor} LOGIN")
    theirs = dataclasses.replace(sink, dsn=sink.dsn.replace("user=headrace", f"user={poor}"))
    run = Run(job="poor", generation=1, delivery=Delivery.AT_LEAST_ONCE, bootstrap_servers="none")
    with pytest.raises(SinkError, match=r"headrace_progress: permission denied.* needs SELECT"):
        theirs.open(run)
    with contextlib.closing(sink.open(dataclasses.replace(run, job="rich"))):
        pass  # which makes the progress table, where no test did before
    postgres.query(f"CREATE TABLE {sink.table} (k text PRIMARY KEY, v int)")
    postgres.query(f"GRANT SELECT, INSERT, UPDATE ON headrace_progress, {sink.table} TO {poor}")
    with contextlib.closing(theirs.open(run)) as writer:
        writer.write(rows(spark, a=1), batch(0))
    assert table(postgres, sink) == {"a": 1}
    postgres.query(f"REVOKE ALL ON {sink.table} FROM {poor}")
    generations = theirs.output_generations("poor")
    with pytest.raises(SinkError, match="permission denied"):
        generations.diff(1, 1)


@EVERY_DELIVERY
def test_a_pooler_that_gives_each_transaction_another_session_keeps_no_lock(
    spark, postgres, sink, delivery
):
    run = Run(job="pooled", generation=1, delivery=delivery, bootstrap_servers="")
    with running_pooler(postgres) as dsn:
        pooled = dataclasses.replace(sink, dsn=dsn)
        with contextlib.closing(pooled.open(run)) as writer:
            # More than the times after which psycopg prepares a statement.
            for number in range(7):
                writer.write(rows(spark, a=number), batch(number))
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
        assert postgres.query(locks) == [(0,)]
    assert table(postgres, sink) == {"a": 6}
