"""Documents with versions and a marker that comes last, in a real OpenSearch from Maven."""

import datetime as dt
import uuid

import pytest

from headrace_jobs.declaration import Delivery
from headrace_jobs.progress.offsets import TopicPartition
from headrace_jobs.progress.stored import Batch, FencedError, StoredProgress
from headrace_jobs.sinks.protocol import Run, SinkError
from headrace_jobs.sinks.search import SearchIndex
from headrace_jobs.sinks.search_marker import Marker, search_client
from headrace_jobs.sinks.search_task import BulkError
from support.opensearch import OpenSearchServer, opensearch_archive

pytestmark = [pytest.mark.spark, pytest.mark.slow]

P0 = TopicPartition("in", 0)


def batch(batch_id):
    """A batch of ten records."""
    begin, end = {P0: batch_id * 10}, {P0: batch_id * 10 + 10}
    return Batch(batch_id=batch_id, checkpoint="c", begin=begin, end=end)


@pytest.fixture(scope="module")
def server():
    archive = opensearch_archive()
    if archive is None:
        pytest.skip("OPENSEARCH IS MISSING: Maven has it not; its sink is NOT TESTED")
    found = OpenSearchServer(archive)
    try:
        found.start()
        yield found
    finally:
        found.close()


@pytest.fixture
def sink(server):
    return SearchIndex(index=f"i-{uuid.uuid4().hex[:8]}", key=("k",), hosts=server.url)


def open_sink(sink, delivery=Delivery.EXACTLY_ONCE):
    return sink.open(Run(job="orders", generation=1, delivery=delivery, bootstrap_servers=""))


def rows(spark, **values):
    return spark.createDataFrame(list(values.items()), "k STRING, v INT")


def documents(sink):
    """Every document by its id: its value and its version."""
    client = search_client([sink.hosts])
    client.indices.refresh(index=sink.index)
    found = client.search(index=sink.index, body={"version": True, "size": 1000})["hits"]["hits"]
    return {each["_id"]: each["_source"].get("v") for each in found}


@pytest.mark.parametrize("delivery", list(Delivery))
def test_documents_replace_themselves_and_a_known_batch_is_skipped(spark, sink, delivery):
    writer = open_sink(sink, delivery)
    writer.write(rows(spark, a=1, b=2), batch(0))
    writer.write(rows(spark, b=3, c=4), batch(1))
    writer.write(rows(spark, b=666), batch(1))
    assert documents(sink) == {"a": 1, "b": 3, "c": 4}
    stored = open_sink(sink, delivery).stored
    assert (stored.epoch, stored.batch_id, stored.offsets) == (2, 1, {P0: 20})


def test_a_batch_without_its_marker_is_written_again_over_itself(spark, server, sink, monkeypatch):
    writer = open_sink(sink)
    writer.write(rows(spark, a=1), batch(0))
    with monkeypatch.context() as patch:
        patch.setattr(writer, "_mark", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            writer.write(rows(spark, a=2, b=2), batch(1))
    assert documents(sink) == {"a": 2, "b": 2}
    # The same driver again: the same version is a conflict, and a success.
    writer.write(rows(spark, a=2, b=2), batch(1))
    # The marker and the documents outlive the server.
    server.kill()
    server.start()
    successor = open_sink(sink)
    assert successor.stored.offsets == {P0: 20}
    successor.write(rows(spark, a=3), batch(2))
    assert documents(sink) == {"a": 3, "b": 2}


def test_a_zombie_moves_neither_marker_nor_its_successors_documents(spark, sink, monkeypatch):
    zombie = open_sink(sink)
    zombie.write(rows(spark, a=1), batch(0))
    index = zombie._index

    def wake_late(*arguments):
        open_sink(sink).write(rows(spark, a=2), batch(1))
        index(*arguments)

    monkeypatch.setattr(zombie, "_index", wake_late)
    with pytest.raises(FencedError):
        zombie.write(rows(spark, a=666), batch(1))
    assert documents(sink) == {"a": 2}
    assert open_sink(sink).stored.batch_id == 1


def test_the_greater_version_wins_and_deletions_have_one_too(spark, sink):
    versioned = SearchIndex(
        index=sink.index, key=("k",), hosts=sink.hosts, version="at", deleted="gone"
    )
    writer = open_sink(versioned)
    schema = "k STRING, v INT, at TIMESTAMP, gone BOOLEAN"
    noon = dt.datetime(2026, 1, 31, 12)  # noqa: DTZ001 - as Spark takes it, in UTC

    def write(batch_id, *changes):
        made = [(k, v, noon + dt.timedelta(seconds=at), gone) for k, v, at, gone in changes]
        writer.write(spark.createDataFrame(made, schema), batch(batch_id))

    write(0, ("a", 2, 2, False), ("b", 1, 1, False))
    write(1, ("a", 1, 1, False), ("b", None, 3, True))
    write(2, ("b", 666, 2, False))
    assert documents(sink) == {"a": 2}


def test_an_index_that_answers_before_it_wrote_is_refused(server, sink):
    client = search_client([server.url])
    client.indices.create(
        index=sink.index, body={"settings": {"index.translog.durability": "async"}}
    )
    with pytest.raises(SinkError, match=r"translog\.durability=async"):
        open_sink(sink)
    open_sink(sink, Delivery.AT_MOST_ONCE)


def test_a_document_that_the_mapping_refuses_fails_the_batch(spark, server, sink):
    mapping = {"mappings": {"properties": {"v": {"type": "date"}}}}
    search_client([server.url]).indices.create(index=sink.index, body=mapping)
    frame = spark.createDataFrame([("a", "no date")], "k STRING, v STRING")
    writer = open_sink(sink)
    with pytest.raises(Exception, match=BulkError.__name__):
        writer.write(frame, batch(0))
    assert open_sink(sink).stored == StoredProgress(epoch=2)


def test_a_marker_is_taken_by_one_of_two_that_start_at_once(server, sink):
    markers = [Marker([server.url], sink.index) for _ in range(2)]
    for marker in markers:
        marker.claim()
    assert [marker.stored.epoch for marker in markers] == [1, 2]
