"""A new generation beside the old one in PostgreSQL: compared, swapped in, gone back from."""

import threading
import uuid
from dataclasses import replace

import psycopg
import pytest

from headrace_jobs.declaration import Job, Topic, problems
from headrace_jobs.delivery import Delivery
from headrace_jobs.progress.offsets import TopicPartition
from headrace_jobs.progress.stored import Batch, FencedError, StoredProgress
from headrace_jobs.sinks.kafka import KafkaSink
from headrace_jobs.sinks.postgres import PostgresTable
from headrace_jobs.sinks.postgres_shadow import make_like, refuse_bound, take_rights
from headrace_jobs.sinks.protocol import Run, SinkError
from support.command_line import run_headrace

P0 = TopicPartition("in", 0)


def batch(batch_id):
    begin, end = {P0: batch_id * 10}, {P0: batch_id * 10 + 10}
    return Batch(batch_id=batch_id, checkpoint="c", begin=begin, end=end)


@pytest.fixture(params=["keyed", "appended"])
def sink(request, postgres):
    key = ("k",) if request.param == "keyed" else ()
    return PostgresTable(table=f"t_{uuid.uuid4().hex[:8]}", key=key, dsn=postgres.dsn)


def open_sink(sink, generation, *, shadow=False, delivery=Delivery.EXACTLY_ONCE, job="orders"):
    run = Run(
        job=job,
        generation=generation,
        delivery=delivery,
        bootstrap_servers="",
        is_shadow=shadow,
    )
    return sink.open(run)


def rows(spark, **values):
    return spark.createDataFrame(list(values.items()), "k STRING, v INT")


def seen(postgres, sink):
    return dict(postgres.query(f"SELECT k, v FROM {sink.table}"))  # noqa: S608 - a test's own name


@pytest.mark.spark
def test_a_shadow_without_a_batch_is_neither_compared_nor_swapped_in(spark, postgres, sink):
    old, new = open_sink(sink, 1), open_sink(sink, 2, shadow=True)
    old.write(rows(spark, a=1), batch(0))
    for each in (old, new):
        each.close()
    generations = sink.output_generations("orders")
    with pytest.raises(SinkError, match="generation 2 has written nothing into"):
        generations.diff(1, 2)
    with pytest.raises(SinkError, match="generation 2 has written nothing into"):
        generations.swap(2)
    assert seen(postgres, sink) == {"a": 1}


@pytest.mark.spark
def test_a_shadow_is_compared_swapped_in_and_swapped_back_while_both_drivers_run(
    spark, postgres, sink
):
    old, new = open_sink(sink, 1), open_sink(sink, 2, shadow=True)
    old.write(rows(spark, a=1, b=2, c=3), batch(0))
    new.write(rows(spark, a=1, b=20, d=4), batch(0))
    assert seen(postgres, sink) == {"a": 1, "b": 2, "c": 3}
    generations = sink.output_generations("orders")
    found = generations.diff(1, 2)
    if sink.key:
        assert (found.only_old, found.only_new, found.changed, found.same) == (1, 1, 1, 1)
    else:
        assert (found.only_old, found.only_new, found.changed, found.same) == (2, 2, 0, 1)
    assert len(found.examples) == found.only_old + found.only_new + found.changed
    assert len(generations.diff(1, 2, examples_max=1).examples) == 1

    generations.swap(2)
    assert seen(postgres, sink) == {"a": 1, "b": 20, "d": 4}
    # Neither driver knows of it: each goes on in its own generation's rows.
    old.write(rows(spark, e=5), batch(1))
    new.write(rows(spark, f=6), batch(1))
    assert seen(postgres, sink) == {"a": 1, "b": 20, "d": 4, "f": 6}
    assert [(each.generation, each.is_live) for each in generations.all()] == [
        (1, False),
        (2, True),
    ]

    generations.swap(1)
    assert seen(postgres, sink) == {"a": 1, "b": 2, "c": 3, "e": 5}
    generations.swap(1)  # once more changes nothing
    assert generations.diff(1, 1).is_none

    with pytest.raises(SinkError, match="readers see generation 1"):
        generations.discard(1)
    generations.discard(2)
    with pytest.raises(FencedError, match="thrown away"):
        new.write(rows(spark, g=7), batch(2))
    assert [each.generation for each in generations.all()] == [1]
    with pytest.raises(SinkError, match="no generation 2"):
        generations.swap(2)
    # The number may be used again, and its former driver stays fenced.
    again = open_sink(sink, 2, shadow=True)
    assert again.stored == StoredProgress(epoch=new.stored.epoch + 2)
    again.write(rows(spark, z=26), batch(0))
    with pytest.raises(FencedError):
        new.write(rows(spark, g=7), batch(2))
    generations.swap(2)
    assert seen(postgres, sink) == {"z": 26}
    for writer in (old, new, again):
        writer.close()


def both_generations(postgres, sink, old, new):
    """Tables of two generations, of these columns."""
    for generation, columns in ((1, old), (2, new)):
        writer = open_sink(sink, generation, shadow=generation > 1)
        writer.rewind(replace(writer.stored, offsets=batch(0).end))
        writer.close()
        table = sink.table if generation == 1 else f"{sink.table}_g2"
        postgres.query(f"CREATE TABLE {table} AS SELECT {columns}")
    return sink.output_generations("orders")


def test_columns_that_only_one_generation_has_are_named(postgres, sink):
    generations = both_generations(
        postgres, sink, "'a' AS k, 1 AS v, 2 AS gone", "'a' AS k, 1 AS v, 2 AS total, 3 AS extra"
    )
    found = generations.diff(1, 2)
    assert (found.columns_old, found.columns_new) == (("gone",), ("extra", "total"))
    assert found.changed + found.only_old == 1
    assert not found.is_none
    postgres.query(f"TRUNCATE {sink.table}, {sink.table}_g2")
    assert not generations.diff(1, 2).is_none


def test_a_generation_with_another_key_is_compared_by_whole_rows(postgres, sink):
    """A join by the new key failed: the old table has no such column."""
    generations = both_generations(postgres, sink, "'a' AS name, 1 AS v", "'a' AS k, 1 AS v")
    found = generations.diff(1, 2)
    assert (found.only_old, found.only_new, found.changed, found.same) == (1, 1, 0, 0)
    assert (found.columns_old, found.columns_new) == (("name",), ("k",))


def test_a_table_of_several_jobs_is_not_swapped(sink):
    """The others' rows would go with it, and theirs would come among the new generation's."""
    for generation in (1, 2):
        writer = open_sink(sink, generation, shadow=generation > 1)
        writer.rewind(replace(writer.stored, offsets=batch(0).end))
        writer.close()
    generations = sink.output_generations("orders")
    # The job's own corrections are no other job's.
    open_sink(sink, 1, job="orders.late").close()
    generations.swap(2)
    open_sink(sink, 1, job="others").close()
    with pytest.raises(SinkError, match=r"rows of other jobs, too \(others\)"):
        generations.swap(1)
    assert [each.is_live for each in generations.all()] == [False, True]


def test_a_name_that_the_server_would_cut_off_is_refused(postgres):
    """Two generations, or two tables, would be one."""
    name = "ä" * 30  # 60 bytes of 63
    sink = PostgresTable(table=f"public.{name}", key=("k",), dsn=postgres.dsn)
    open_sink(sink, 1).close()
    open_sink(sink, 2, shadow=True).close()
    for table, generation in ((name, 10), (f"{name}bbcc", 1), (f"{'s' * 64}.t", 1)):
        long = PostgresTable(table=table, key=("k",), dsn=postgres.dsn)
        with pytest.raises(SinkError, match=r"\d\d bytes: PostgreSQL cuts .* after 63"):
            open_sink(long, generation, shadow=generation > 1)


def test_a_shadow_takes_no_table_that_is_somebody_elses(postgres, sink):
    postgres.query(f"CREATE TABLE {sink.table}_g2 (k text, v int)")
    postgres.query(f"INSERT INTO {sink.table}_g2 VALUES ('a', 1)")  # noqa: S608 - as above
    with pytest.raises(SinkError, match=f"table {sink.table}_g2 has rows"):
        open_sink(sink, 2, shadow=True)
    postgres.query(f"TRUNCATE {sink.table}_g2")
    open_sink(sink, 2, shadow=True).close()
    # Its own rows, of a batch without progress, are no obstacle.
    postgres.query(f"INSERT INTO {sink.table}_g2 VALUES ('a', 1)")  # noqa: S608 - as above
    open_sink(sink, 2, shadow=True).close()


@pytest.mark.spark
@pytest.mark.parametrize("is_thrown_away", [True, False])
def test_a_zombies_staging_table_does_not_stay(spark, postgres, sink, monkeypatch, is_thrown_away):
    """What it had staged goes with its generation or by its successor; it stages no more."""
    from headrace_jobs.sinks import postgres as module

    old, zombie = open_sink(sink, 1), open_sink(sink, 2, shadow=True)
    zombie.write(rows(spark, a=1), batch(0))
    staged = f"SELECT tablename FROM pg_tables WHERE starts_with(tablename, '{zombie._prefix}')"  # noqa: S608

    def end_it():
        if is_thrown_away:
            sink.output_generations("orders").discard(2)
        else:
            open_sink(sink, 2).close()

    copy_rows, judge = module.copy_rows, module.judge

    def staged_then_replaced(*arguments):
        counted = copy_rows(*arguments)
        end_it()
        return counted

    with monkeypatch.context() as patch:
        patch.setattr(module, "copy_rows", staged_then_replaced)
        with pytest.raises(FencedError):
            zombie.write(rows(spark, a=2), batch(1))
    assert postgres.query(staged) == []
    zombie.close()
    zombie = open_sink(sink, 2, shadow=is_thrown_away)
    first = batch(0) if is_thrown_away else batch(1)

    def judged_then_replaced(*arguments):
        verdict = judge(*arguments)
        end_it()
        return verdict

    with monkeypatch.context() as patch:
        patch.setattr(module, "judge", judged_then_replaced)
        with pytest.raises(FencedError):
            zombie.write(rows(spark, a=3), first)
    assert postgres.query(staged) == []
    for writer in (old, zombie):
        writer.close()


@pytest.mark.spark
@pytest.mark.parametrize("delivery", list(Delivery))
def test_a_swap_waits_for_tasks_that_write_into_the_table(spark, postgres, delivery, monkeypatch):
    """Rows of one generation never land among another's."""
    from headrace_jobs.sinks import postgres as module

    sink = PostgresTable(table=f"t_{uuid.uuid4().hex[:8]}", key=("k",), dsn=postgres.dsn)
    old, new = open_sink(sink, 1, delivery=delivery), open_sink(sink, 2, shadow=True)
    new.write(rows(spark, a=2), batch(0))
    copy_rows, swaps = module.copy_rows, []

    def swap_meanwhile(*arguments):
        swaps.append(threading.Thread(target=sink.output_generations("orders").swap, args=(2,)))
        swaps[0].start()
        return copy_rows(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(module, "copy_rows", swap_meanwhile)
        old.write(rows(spark, a=1), batch(0))
    swaps[0].join(30)
    assert seen(postgres, sink) == {"a": 2}
    assert dict(postgres.query(f"SELECT k, v FROM {sink.table}_g1")) == {"a": 1}  # noqa: S608
    old.close()
    new.close()


def test_a_new_generation_among_anothers_rows_is_refused(postgres):
    sink = PostgresTable(table=f"t_{uuid.uuid4().hex[:8]}", key=("k",), dsn=postgres.dsn)
    open_sink(sink, 1).close()
    with pytest.raises(SinkError, match=r"holds the rows of generation 1.*--shadow"):
        open_sink(sink, 2)
    # Its own restarts need no flag once it is there.
    open_sink(sink, 2, shadow=True).close()
    open_sink(sink, 2).close()


def test_a_sink_that_cannot_be_swapped_takes_no_shadow():
    job = Job(
        name="orders",
        sources=(Topic("orders"),),
        transform=lambda records: records,
        sinks=(KafkaSink(topic="out", key_columns=("k",)),),
        generation=2,
        shadow=True,
    )
    assert "topic out cannot be swapped in one step" in problems(job)[0]


MODULE = """
from headrace_jobs.declaration import Job, Topic
from headrace_jobs.sinks.postgres import PostgresTable
JOB = Job(
    name="orders", sources=(Topic("orders"),), transform=lambda records: records,
    sinks=(PostgresTable(table={table!r}, dsn={dsn!r}, key=("k",)),),
)
"""


@pytest.mark.spark
@pytest.mark.long
def test_the_command_line_lists_compares_swaps_and_discards(spark, postgres, tmp_path):
    sink = PostgresTable(table=f"t_{uuid.uuid4().hex[:8]}", key=("k",), dsn=postgres.dsn)
    for generation in (1, 2):
        writer = open_sink(sink, generation, shadow=generation > 1)
        writer.write(rows(spark, a=1, b=generation), batch(0))
        writer.close()
    module = tmp_path / "orders_job.py"
    module.write_text(MODULE.format(table=sink.table, dsn=sink.dsn))

    def headrace_jobs(command, *arguments):
        done = run_headrace("jobs", command, module, *arguments)
        return done.returncode, done.stdout

    status, listed = headrace_jobs("generations")
    assert status == 0
    assert f"{sink.table}_g2" in listed
    assert '{"in": {"0": 10}}' in listed
    status, shown = headrace_jobs("diff", "1", "2")
    assert status == 1
    assert "1 rows alike, 1 changed, 0 in generation 1 only" in shown
    assert '- {"k": "b", "v": 1}' in shown
    assert '+ {"k": "b", "v": 2}' in shown
    assert headrace_jobs("swap", "2")[0] == 0
    assert seen(postgres, sink) == {"a": 1, "b": 2}
    assert headrace_jobs("discard", "1", "--yes")[0] == 0
    assert headrace_jobs("diff", "1", "2")[0] == 1


@pytest.mark.spark
def test_readers_of_a_swapped_table_keep_what_its_owner_gave_them(spark, postgres):
    """Rights, row security, types, defaults and indexes, which belong to a table, not to a name."""
    name, reader = (f"{kind}_{uuid.uuid4().hex[:8]}" for kind in ("t", "reader"))
    sink = PostgresTable(table=name, key=("k",), dsn=postgres.dsn)
    for statement in (
        f"CREATE TABLE {name} (id serial, k text PRIMARY KEY, v numeric(10,2), secret text)",
        f"ALTER TABLE {name} ADD COLUMN note text DEFAULT 'x'",
        f"CREATE INDEX {name}_v ON {name} (v)",
        f"CREATE ROLE {reader} LOGIN",
        f"GRANT SELECT (k, v, note, id) ON {name} TO {reader}",
        f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY",
        f"CREATE POLICY not_b ON {name} FOR SELECT TO {reader} USING (k <> 'b')",
    ):
        postgres.query(statement)
    old, new = open_sink(sink, 1), open_sink(sink, 2, shadow=True)
    old.write(rows(spark, a=1, b=1), batch(0))
    frame = spark.createDataFrame([("a", 2, 0.5), ("b", 2, 0.5)], "k STRING, v INT, more DOUBLE")
    new.write(frame, batch(0))
    generations = sink.output_generations("orders")
    theirs = postgres_of(postgres, reader)
    for generation, value in ((2, 2), (1, 1), (2, 2)):
        generations.swap(generation)
        assert theirs(f"SELECT k, v, note FROM {name}") == [("a", value, "x")]  # noqa: S608
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            theirs(f"SELECT secret FROM {name}")  # noqa: S608 - as above
        (kind,) = postgres.query(
            f"SELECT format_type(atttypid, atttypmod) FROM pg_attribute"  # noqa: S608 - as above
            f" WHERE attrelid = '{name}'::regclass AND attname = 'v'"
        )
        assert kind == ("numeric(10,2)",)
        indexed = f"SELECT indexdef FROM pg_indexes WHERE tablename = '{name}'"  # noqa: S608
        assert any("(v)" in text for (text,) in postgres.query(indexed))
    assert postgres.query(f"SELECT DISTINCT more FROM {name}") == [(0.5,)]  # noqa: S608 - as above
    old.close()
    new.close()
    # The sequence of the serial column goes with the table that is live.
    generations.discard(1)
    postgres.query(f"INSERT INTO {name} (k) VALUES ('c')")  # noqa: S608 - as above


def like(postgres, columns, written, key=("k",)):
    """Make a live table of these columns, and a shadow for a frame; returns the shadow's types."""
    name = f"t_{uuid.uuid4().hex[:8]}"
    postgres.query(f"CREATE TABLE {name} ({columns})")
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        if not make_like(connection, f"{name}_g2", name, written, key):
            return None
    kinds = "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
    return dict(postgres.query(f"{kinds} WHERE attrelid = '{name}_g2'::regclass AND attnum > 0"))


def test_a_shadows_columns_have_the_live_types_where_these_hold_what_is_written(postgres):
    live = "k uuid PRIMARY KEY, a integer DEFAULT 1, b bigint, c varchar(9), d jsonb, e text"
    written = {"k": "text", "a": "double precision", "b": "integer", "c": "text", "d": "text"}
    found = like(postgres, live, written | {"e": "bigint", "f": "timestamptz"})
    assert found == {
        "k": "uuid",
        "a": "double precision",
        "b": "bigint",
        "c": "character varying(9)",
        "d": "jsonb",
        "e": "text",
        "f": "timestamp with time zone",
    }


def test_a_shadow_with_another_key_is_not_made_like_the_live_table(postgres):
    live = "k text PRIMARY KEY, n integer, UNIQUE (n, k)"
    written = {"k": "text", "n": "integer"}
    assert like(postgres, live, written, ("n",)) is None
    assert like(postgres, live, written, ("n", "k")) is not None
    assert like(postgres, live, written, ()) is not None
    assert like(postgres, "k text, n integer", written) is None


def test_what_would_stay_with_the_former_table_is_named_before_a_swap(postgres):
    name = f"t_{uuid.uuid4().hex[:8]}"
    for statement in (
        f"CREATE TABLE {name} (k text PRIMARY KEY)",
        f"CREATE TABLE {name}_g2 (LIKE {name} INCLUDING ALL)",
    ):
        postgres.query(statement)
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        refuse_bound(connection, name, f"{name}_g2")
        for statement in (
            f"CREATE VIEW v_{name} AS SELECT * FROM {name}",  # noqa: S608 - a test's own name
            f"CREATE TABLE other_{name} (k text CONSTRAINT fk_{name} REFERENCES {name})",
            f"CREATE FUNCTION f_{name}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END'",
            f"CREATE TRIGGER tr AFTER INSERT ON {name} EXECUTE FUNCTION f_{name}()",
        ):
            connection.execute(statement)
        found = rf"fk_{name} of other_{name}, view v_{name}, trigger tr: would stay"
        with pytest.raises(SinkError, match=found):
            refuse_bound(connection, name, f"{name}_g2")
        connection.execute(f"DROP VIEW v_{name}")
        connection.execute(f"DROP TABLE other_{name}")
        with pytest.raises(SinkError, match=rf"give {name}_g2 the same \(trigger tr\)"):
            refuse_bound(connection, name, f"{name}_g2")
        connection.execute(
            f"CREATE TRIGGER tr AFTER INSERT ON {name}_g2 EXECUTE FUNCTION f_{name}()"
        )
        refuse_bound(connection, name, f"{name}_g2")


def test_a_swapped_in_table_gives_nobody_more_than_the_live_one_did(postgres):
    name, owner, reader = (f"{kind}_{uuid.uuid4().hex[:8]}" for kind in ("t", "owner", "reader"))
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        for statement in (
            f"CREATE ROLE {owner}",
            f"CREATE ROLE {reader}",
            f"GRANT CREATE ON SCHEMA public TO {owner}",
            f"CREATE TABLE {name} (k text)",
            f"CREATE TABLE {name}_g2 (k text)",
            f"ALTER TABLE {name} OWNER TO {owner}",
            f"GRANT SELECT, INSERT ON {name} TO {reader} WITH GRANT OPTION",
            f"GRANT UPDATE ON {name}_g2 TO {reader}, PUBLIC",
            f"GRANT SELECT ON {name}_g2 TO {reader}",
            f"CREATE POLICY p ON {name}_g2 USING (true)",
        ):
            connection.execute(statement)
        take_rights(connection, name, f"{name}_g2")
        take_rights(connection, name, f"{name}_g2")
        acls = connection.execute(
            "SELECT pg_get_userbyid(relowner)::text, relacl::text FROM pg_class"
            " WHERE relname = ANY(%s)",
            ([name, f"{name}_g2"],),
        ).fetchall()
        assert len(acls) == 2
        assert acls[0] == acls[1]
        policies = "SELECT count(*) FROM pg_policies WHERE tablename = %s"
        assert connection.execute(policies, (f"{name}_g2",)).fetchone() == (0,)


def postgres_of(postgres, role):
    """A function that asks as a role."""

    def query(statement):
        dsn = postgres.dsn.replace("user=headrace", f"user={role}")
        with psycopg.connect(dsn, autocommit=True) as connection:
            return connection.execute(statement).fetchall()

    return query
