"""Streams from a broker into each sink, ended at every step of a batch and started again.

The driver's end is an exception at that step: what is in the checkpoint and in the sink is what a
kill leaves (`test_crashes` kills processes), and the next query starts in the same session.
"""

import uuid
from collections import Counter
from dataclasses import dataclass, field

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from headrace_jobs.delivery import Delivery
from headrace_jobs.jobs.outputs import Outputs
from headrace_jobs.progress.drivers import DriverEpoch
from headrace_jobs.progress.stored import FencedError
from headrace_jobs.sinks.files import FileTable
from headrace_jobs.sinks.files_plain import committed_files
from headrace_jobs.sinks.postgres import PostgresTable
from headrace_jobs.sinks.protocol import Run
from headrace_jobs.sources.kafka import KafkaSource, read_stream

pytestmark = [pytest.mark.spark, pytest.mark.slow]

RECORDS = 48
RECORDS_A_BATCH = 8
ALL = Counter({(number % 2, number // 2): 1 for number in range(RECORDS)})


class EndOfDriverError(Exception):
    """Where a test ends the driver."""


@dataclass
class Stream:
    """A query that appends each record's position to a sink, from start to start."""

    spark: object
    bootstrap: str
    topic: str
    sink: object
    checkpoint: str
    delivery: Delivery = Delivery.EXACTLY_ONCE
    opened: list = field(default_factory=list)

    def open(self):
        run = Run(job="j", generation=1, delivery=self.delivery, bootstrap_servers=self.bootstrap)
        writer = self.sink.open(run)
        self.opened.append(writer)
        return writer

    def run(self, writer=None, ends=None):
        """Run until the topic's end; `ends(step, batch)` raises where the driver ends."""
        outputs = Outputs(
            writers=[writer or self.open()],
            delivery=self.delivery,
            driver=DriverEpoch(self.checkpoint),
        )
        outputs.checkpoint = str(self.checkpoint)

        def write(frame, batch_id):
            if ends:
                ends("planned", batch_id)
            outputs.write(frame, batch_id)
            if ends:
                ends("written", batch_id)

        source = KafkaSource(
            bootstrap_servers=self.bootstrap,
            topic=self.topic,
            max_offsets_per_trigger=RECORDS_A_BATCH,
        )
        query = (
            read_stream(self.spark, source)
            .selectExpr("partition AS at", "offset AS position")
            .writeStream.option("checkpointLocation", str(self.checkpoint))
            .foreachBatch(write)
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except Exception as error:
            if "EndOfDriverError" not in str(error):
                raise
            return False
        return True

    def close(self):
        for writer in self.opened:
            writer.close()


def sink_of(kind, tmp_path, postgres):
    if kind == "postgres":
        return PostgresTable(table=f"d_{uuid.uuid4().hex[:8]}", dsn=postgres.dsn)
    return FileTable(path=str(tmp_path / "table"), form=kind, compact_after=4)


def rows(stream, postgres):
    """How often the sink has each position, read by somebody else's reader."""
    sink = stream.sink
    if isinstance(sink, PostgresTable):
        found = postgres.query(f"SELECT at, position FROM {sink.table}")  # noqa: S608 - a test's own
    elif sink.form == "delta":
        table = DeltaTable(sink.path).to_pyarrow_table().to_pydict()
        found = zip(table["at"], table["position"], strict=True)
    else:
        frame = stream.spark.read.parquet(*map(str, committed_files(sink.path)))
        found = [(row.at, row.position) for row in frame.collect()]
    return Counter(tuple(row) for row in found)


@pytest.fixture
def new_stream(spark, broker, new_topic, tmp_path, postgres):
    made = []

    def make(kind, delivery=Delivery.EXACTLY_ONCE):
        topic = new_topic(2)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(RECORDS):
            producer.produce(topic, str(number), partition=number % 2)
        assert producer.flush(30) == 0
        checkpoint = tmp_path / "checkpoint"
        checkpoint.mkdir()
        sink = sink_of(kind, tmp_path, postgres)
        made.append(Stream(spark, broker.bootstrap, topic, sink, checkpoint, delivery))
        return made[-1]

    yield make
    for stream in made:
        stream.close()


def at(step, batch_id):
    def ends(here, batch):
        if (here, batch) == (step, batch_id):
            raise EndOfDriverError

    return ends


def break_commit(writer, monkeypatch, *, is_done):
    """End the driver around the sink's own commit of its second batch."""
    owner, name = (
        (writer._store, "_transact_once") if hasattr(writer, "_store") else (writer._log, "commit")
    )
    commit, calls = getattr(owner, name), []

    def broken(*arguments):
        calls.append(1)
        if len(calls) != 2:
            return commit(*arguments)
        if is_done:
            commit(*arguments)
        raise EndOfDriverError

    monkeypatch.setattr(owner, name, broken)
    return writer


@pytest.mark.parametrize("kind", ["postgres", "delta", "parquet"])
def test_exactly_once_holds_wherever_the_driver_ends(new_stream, postgres, monkeypatch, kind):
    stream = new_stream(kind)
    assert not stream.run(ends=at("planned", 1))
    assert not stream.run(break_commit(stream.open(), monkeypatch, is_done=False))
    assert not stream.run(break_commit(stream.open(), monkeypatch, is_done=True))
    assert not stream.run(ends=at("written", 4))
    assert stream.run()
    assert rows(stream, postgres) == ALL
    # The same batch over and over: its entry in the checkpoint is lost each time.
    last = max((stream.checkpoint / "commits").iterdir(), key=lambda path: path.name)
    for _ in range(2):
        for path in (last, last.with_name(f".{last.name}.crc")):
            path.unlink(missing_ok=True)
        assert stream.run()
    assert rows(stream, postgres) == ALL
    stored = stream.open().stored
    assert sum(stored.offsets.values()) == RECORDS


@pytest.mark.parametrize("kind", ["postgres", "parquet"])
def test_at_most_once_loses_no_more_than_the_batch_in_work(new_stream, postgres, monkeypatch, kind):
    stream = new_stream(kind, Delivery.AT_MOST_ONCE)
    assert not stream.run(break_commit(stream.open(), monkeypatch, is_done=True))
    assert stream.run()
    found = rows(stream, postgres)
    assert max(found.values()) == 1
    assert sum((ALL - found).values()) <= RECORDS_A_BATCH


def test_at_least_once_loses_nothing(new_stream, postgres, monkeypatch):
    stream = new_stream("postgres", Delivery.AT_LEAST_ONCE)
    assert not stream.run(break_commit(stream.open(), monkeypatch, is_done=False))
    assert stream.run()
    found = rows(stream, postgres)
    assert not ALL - found
    # The second batch was written, its progress was not.
    assert sum((found - ALL).values()) == RECORDS_A_BATCH


def test_a_driver_that_was_replaced_writes_nothing(new_stream, postgres):
    stream = new_stream("postgres")
    zombie = stream.open()
    assert not stream.run(zombie, ends=at("written", 1))
    assert not stream.run(ends=at("planned", 3))
    before = rows(stream, postgres)
    with pytest.raises(Exception, match=FencedError.__name__):
        stream.run(zombie)
    assert rows(stream, postgres) == before
    assert stream.run()
    assert rows(stream, postgres) == ALL
