"""What `headrace jobs replay-late` refuses, and that each sink has the right results afterwards.

With a job whose late records were really late: test_no_reading_is_lost.
"""

import contextlib
import dataclasses
import json
import uuid
from datetime import datetime
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, Producer
from pyspark.sql import functions as F  # noqa: N812 - the name that Spark's own pages use

from headrace_jobs.declaration import Job, Topic
from headrace_jobs.delivery import Delivery
from headrace_jobs.jobs import cpu_load, retail
from headrace_jobs.jobs import replay_late as module
from headrace_jobs.jobs.declared import parse_declared
from headrace_jobs.jobs.replay_late import (
    _check_sinks,
    _of_keys,
    _say_unfit,
    _whole_records,
    main,
    replay_late,
)
from headrace_jobs.jobs.startup import JobError
from headrace_jobs.progress.stored import Batch
from headrace_jobs.sinks.files import FileTable
from headrace_jobs.sinks.files_plain import committed_files
from headrace_jobs.sinks.kafka import KafkaSink
from headrace_jobs.sinks.only import Only
from headrace_jobs.sinks.postgres import PostgresTable
from headrace_jobs.sinks.protocol import Run
from headrace_jobs.sinks.search import SearchIndex
from headrace_jobs.sinks.search_marker import search_client
from support.processes import LOOPBACK, free_port

COMMON = ("--checkpoint", "/nowhere", "--bootstrap-servers")
TOPICS = ("--input-topic", "in", "--output-topic", "out")


def replay(job, *more):
    replay_late(*parse_declared(job, [*COMMON, f"{LOOPBACK}:{free_port()}", *more]))


def test_a_job_that_does_not_tell_its_results_apart_is_refused_with_the_other_way():
    with pytest.raises(JobError, match="Begin a new generation"):
        replay(retail.JOB, "--dead-letter-topic", "dead")
    unnamed = dataclasses.replace(cpu_load.JOB, result_key=())
    with pytest.raises(JobError, match="result_key"):
        replay(unnamed, *TOPICS, "--dead-letter-topic", "dead")


def test_a_job_of_several_topics_is_refused_with_the_other_way():
    job = dataclasses.replace(
        cpu_load.JOB,
        sources=(Topic("a", name="a"), Topic("b", name="b")),
        transform=lambda a, b, **_: a.unionByName(b),
    )
    with pytest.raises(JobError, match=r"reads several topics.* Begin a new generation"):
        replay(job, "--output-topic", "out", "--dead-letter-topic", "dead")


def test_it_wants_to_know_where_late_records_are():
    with pytest.raises(JobError, match="give --dead-letter-topic"):
        replay(cpu_load.JOB, *TOPICS)


def test_brokers_that_are_not_there_are_named():
    with pytest.raises(JobError, match=r"no broker answers at 127\.0\.0\.1"):
        replay(cpu_load.JOB, *TOPICS, "--dead-letter-topic", "dead")


def test_a_module_is_needed(capsys):
    assert main([]) == 2
    assert "usage:" in capsys.readouterr().err


def test_files_whose_readers_would_not_see_which_result_is_right_are_refused():
    results = SimpleNamespace(columns=["k", "v", "revision"])
    files = FileTable(path="/t")
    job = dataclasses.replace(cpu_load.JOB, sinks=(files,))
    _check_sinks(job, results)
    part = Only(rows="true", columns=("k", "v"), sink=files)
    with pytest.raises(JobError, match="delta table /t cannot be corrected"):
        _check_sinks(dataclasses.replace(job, sinks=(part,)), results)
    part = dataclasses.replace(part, columns=("k", "v", "revision"))
    _check_sinks(dataclasses.replace(job, sinks=(part,)), results)


@pytest.mark.spark
def test_a_result_whose_key_is_null_is_corrected_like_any_other(spark):
    results = spark.createDataFrame(
        [("a", 1, 10), (None, 1, 20), (None, 2, 30), ("b", 1, 40)], "host STRING, cpu INT, v INT"
    )
    touched = results.where("v IN (10, 20)").union(results.where("v = 20"))
    found = _of_keys(results, touched, ("host", "cpu"))
    assert found.columns == results.columns
    assert sorted(row["v"] for row in found.collect()) == [10, 20]


@pytest.mark.spark
def test_results_that_a_sink_can_never_take_are_counted_with_the_reason(spark, capsys):
    results = spark.createDataFrame([("a",), (None,), (None,)], "k STRING")
    _say_unfit("table t", results, F.when(F.col("k").isNull(), "k is null"))
    told = capsys.readouterr()
    assert "k is null" in told.out + told.err
    assert "table t" in told.out + told.err
    _say_unfit("table t", results.where("k = 'a'"), F.when(F.col("k").isNull(), "k is null"))
    assert capsys.readouterr() == ("", "")


KAFKA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,"
    " timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


@pytest.mark.spark
def test_late_records_are_replayed_as_they_are_in_the_input(spark):
    """A dead letter has the time at which it was written, and a window by that is another one."""
    then, now = (datetime(2026, 1, 31, hour) for hour in (12, 13))  # noqa: DTZ001 - as Spark takes it, in UTC
    own = [("trace", b"1")]
    added = [*own, ("headrace.reason", b"late")]
    cut = [*added, ("headrace.original-bytes", b"9")]
    records = spark.createDataFrame(
        [
            (b"k", b"whole", "in", 0, 1, then, 0, own),
            (b"k", b"cut and more", "in", 0, 2, then, 1, None),
            (b"k", b"on time", "in", 0, 3, then, 0, None),
        ],
        KAFKA,
    )
    letters = [
        (b"k", b"whole", "in", 0, 1, now, 0, added),
        (b"k", b"cut", "in", 0, 2, now, 0, cut),
        # Retention took these from the input.
        (b"k", b"gone", "in", 0, 0, now, 0, added),
        (b"k", b"cut and go", "in", 1, 0, now, 0, cut),
    ]
    late = spark.createDataFrame(letters, KAFKA)
    found = _whole_records(late, records)
    assert found.columns == late.columns
    rows = {row.offset: row for row in found.collect()}
    assert sorted(rows) == [0, 1, 2]
    assert (rows[1].value, rows[1].timestamp, rows[1].timestampType) == (b"whole", then, 0)
    assert [tuple(each) for each in rows[1].headers] == own
    assert (rows[2].value, rows[2].timestamp, rows[2].timestampType) == (b"cut and more", then, 1)
    # When it was sent is in no dead letter: no time is better than another one.
    assert (rows[0].value, rows[0].timestamp) == (b"gone", None)


def counts(records):
    """How many records each key has."""
    key = F.col("key").cast("string").alias("k")
    return records.groupBy(key).agg(
        F.count(F.lit(1)).alias("v"), F.lit(0).cast("long").alias("revision")
    )


def send(bootstrap, topic, *records):
    producer = Producer({"bootstrap.servers": bootstrap})
    for key, headers in records:
        producer.produce(topic, b"x", key, headers=headers)
    assert producer.flush(30) == 0


def late(job, topic, offset):
    """The headers of a dead letter, as `as_dead_letters` writes them."""
    found = {"topic": topic, "partition": "0", "offset": str(offset), "reason": "late"}
    found |= {"job": job, "watermark": "2026-01-31T12:00:00.000000Z"}
    return [(f"headrace.{name}", text.encode()) for name, text in found.items()]


def in_topic(broker, topic):
    settings = {"group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    settings |= {"bootstrap.servers": broker.bootstrap, "enable.partition.eof": True}
    consumer = Consumer(settings | {"isolation.level": "read_committed"})
    consumer.subscribe([topic])
    found = {}
    while (record := consumer.poll(30)) is not None and not record.error():
        found[record.key().decode()] = json.loads(record.value())["v"]
    consumer.close()
    return found


def in_files(spark, sink):
    """The greatest revision of each key, as docs/delivery.md says."""
    if sink.form == "delta":
        from deltalake import DeltaTable

        rows = DeltaTable(sink.path).to_pyarrow_table().to_pylist()
    else:
        paths = [str(path) for path in committed_files(sink.path)]
        rows = [row.asDict() for row in spark.read.parquet(*paths).collect()]
    return {row["k"]: row["v"] for row in sorted(rows, key=lambda row: row["revision"])}, len(rows)


def in_index(sink):
    client = search_client([sink.hosts])
    client.indices.refresh(index=sink.index)
    found = client.search(index=sink.index)["hits"]["hits"]
    return {each["_id"]: each["_source"]["v"] for each in found}


@pytest.fixture(params=["topic", "table", "delta", "parquet", "index", "versioned index"])
def place(request, spark, broker, new_topic, tmp_path):
    """A sink of this kind, and a function that returns what its readers find."""
    name = f"r_{uuid.uuid4().hex[:8]}"
    if request.param == "topic":
        topic = new_topic(1)
        return KafkaSink(topic=topic, key_columns=("k",)), lambda: in_topic(broker, topic)
    if request.param == "table":
        server = request.getfixturevalue("postgres")
        query = f"SELECT k, v FROM {name}"  # noqa: S608 - a test's own name
        return PostgresTable(table=name, key=("k",), dsn=server.dsn), lambda: dict(
            server.query(query)
        )
    if "index" in request.param:
        server = request.getfixturevalue("opensearch")
        version = "revision" if "versioned" in request.param else None
        sink = SearchIndex(index=name, key=("k",), version=version, hosts=server.url)
        return sink, lambda: in_index(sink)
    files = FileTable(path=str(tmp_path / name), form=request.param)
    return files, lambda: in_files(spark, files)[0]


@pytest.mark.spark
@pytest.mark.slow
def test_in_every_sink_readers_find_the_corrected_results(
    spark, broker, new_topic, group_offsets, monkeypatch, place
):
    sink, read = place
    source, dead = new_topic(1), new_topic(1)
    job = Job(
        # Also the name of a group, of which other tests have others.
        name=f"counts-{uuid.uuid4().hex[:8]}",
        sources=(Topic(source),),
        transform=counts,
        sinks=(sink,),
        delivery=Delivery.EXACTLY_ONCE,
        result_key=("k",),
    )
    send(broker.bootstrap, source, *(("a", None), ("b", None), ("a", None)))
    run = Run(
        job=job.name,
        generation=1,
        delivery=job.delivery,
        bootstrap_servers=broker.bootstrap,
        input_topics=(source,),
    )
    # Over several batches: the job's own writes of today are no older than a first correction.
    schema = "k STRING, v LONG, revision LONG"
    with contextlib.closing(sink.open(run)) as writer:
        for number in range(3):
            own = spark.createDataFrame([("a", 1, 0), ("b", 1, 0)], schema).coalesce(1)
            writer.write(own, Batch(batch_id=number, checkpoint="c"))
    assert read() == {"a": 1, "b": 1}
    send(broker.bootstrap, dead, ("a", late(job.name, source, 2)))

    class Session:
        """The tests' session, which outlives a replay."""

        read, stop = property(lambda _: spark.read), staticmethod(lambda: None)

    monkeypatch.setattr(module, "open_session", lambda _: Session())

    def again(dead):
        arguments = ["--checkpoint", "/nowhere", "--bootstrap-servers", broker.bootstrap]
        replay_late(*parse_declared(job, [*arguments, "--dead-letter-topic", dead]))

    again(dead)
    assert read() == {"a": 2, "b": 1}
    assert group_offsets(f"{job.name}.late") == {(dead, 0): 1}

    # A topic of dead letters that is as long as the first one was, which the sinks know.
    other = new_topic(1)
    send(broker.bootstrap, source, ("b", None))
    send(broker.bootstrap, other, ("b", late(job.name, source, 3)))
    with monkeypatch.context() as patch:
        # As if it were killed before it noted what it had replayed.
        patch.setattr(module.GroupClient, "commit", lambda *_: None)
        again(other)
    assert read() == {"a": 2, "b": 2}
    count = in_files(spark, sink)[1] if isinstance(sink, FileTable) else None
    again(other)
    assert read() == {"a": 2, "b": 2}
    assert count is None or in_files(spark, sink)[1] == count
    assert group_offsets(f"{job.name}.late") == {(dead, 0): 1, (other, 0): 1}
