"""Documents with versions and a marker that comes last, in a real OpenSearch from Maven."""

import dataclasses
import datetime as dt
import threading
import uuid

import pytest
from structlog.testing import capture_logs

from headrace_jobs import outages
from headrace_jobs.declaration import Delivery
from headrace_jobs.jobs.outputs import fitting
from headrace_jobs.progress.offsets import TopicPartition
from headrace_jobs.progress.stored import Batch, FencedError, StoredProgress
from headrace_jobs.sinks.protocol import Run, SinkError
from headrace_jobs.sinks.search import SearchIndex
from headrace_jobs.sinks.search_marker import Marker, search_client
from headrace_jobs.sinks.search_task import BulkError, _requests
from support.holding_proxy import HoldingProxy
from support.processes import LOOPBACK

pytestmark = [pytest.mark.spark, pytest.mark.slow]

P0 = TopicPartition("in", 0)


def batch(batch_id):
    """A batch of ten records."""
    begin, end = {P0: batch_id * 10}, {P0: batch_id * 10 + 10}
    return Batch(batch_id=batch_id, checkpoint="c", begin=begin, end=end)


@pytest.fixture(scope="module")
def server(opensearch):
    return opensearch


@pytest.fixture
def sink(server):
    return SearchIndex(index=f"i-{uuid.uuid4().hex[:8]}", key=("k",), hosts=server.url)


def open_sink(sink, delivery=Delivery.EXACTLY_ONCE, generation=1, *, shadow=False, job="orders"):
    run = Run(
        job=job,
        generation=generation,
        delivery=delivery,
        bootstrap_servers="",
        is_shadow=shadow,
    )
    return sink.open(run)


def correct(sink, frame, number=0):
    """Write as a replay of late records does, which has read so many of them."""
    writer = open_sink(sink, Delivery.AT_LEAST_ONCE, job="orders.late")
    writer.write(frame, Batch(batch_id=number, end={TopicPartition("dead", 0): number}))


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


@pytest.mark.parametrize("request_of", [b'"version_type"', b'"sequence"'])
def test_a_request_that_arrives_after_its_sender_gave_up_changes_nothing(
    spark, server, sink, request_of
):
    """The task's bulk, or the driver's marker: cut off, sent again, and then the first arrives."""
    with HoldingProxy((LOOPBACK, server.port)) as proxy:
        writer = open_sink(dataclasses.replace(sink, hosts=f"http://{LOOPBACK}:{proxy.port}"))
        writer.write(rows(spark, a=1, b=1), batch(0))
        proxy.hold(request_of, 4)
        writer.write(rows(spark, a=2), batch(1))
        assert proxy.has_held.is_set()
        writer.write(rows(spark, a=3), batch(2))
        assert proxy.has_delivered.wait(60)
        writer.write(rows(spark, b=4), batch(3))
        assert documents(sink) == {"a": 3, "b": 4}
        stored = open_sink(sink).stored
        assert (stored.epoch, stored.batch_id, stored.offsets) == (2, 3, {P0: 40})


def block(server, sink, *, is_full):
    """Do to the index what the server does when its disk is full, and when there is room again."""
    settings = {"index.blocks.read_only_allow_delete": is_full or None}
    search_client([server.url]).indices.put_settings(index=sink.index, body=settings)


def test_a_full_disk_fails_the_batch_and_is_made_up_for_when_there_is_room(
    spark, server, sink, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(outages, "OUTAGE_SECONDS_MAX", 2.0)
        writer = open_sink(sink)
    writer.write(rows(spark, a=1), batch(0))
    block(server, sink, is_full=True)
    with pytest.raises(Exception, match=r"documents are refused for now, .*flood-stage"):
        writer.write(rows(spark, a=2, b=2), batch(1))
    assert documents(sink) == {"a": 1}
    # The driver that is started again finds room while it tries.
    successor = open_sink(sink)
    assert successor.stored.offsets == {P0: 10}
    threading.Timer(2, block, (server, sink), {"is_full": False}).start()
    successor.write(rows(spark, a=2, b=2), batch(1))
    assert documents(sink) == {"a": 2, "b": 2}


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


def test_a_document_without_a_version_is_older_and_every_key_has_an_id(spark, sink):
    writer = open_sink(dataclasses.replace(sink, version="at"))
    schema = "k STRING, v INT, at INT"

    def write(batch_id, *found):
        writer.write(spark.createDataFrame(found, schema), batch(batch_id))

    write(0, ("a", 1, None), ("b", 1, 5), (None, 1, None), ("", 1, None), ("null", 1, None))
    write(1, ("a", 2, None), ("b", 2, None), (None, 2, 1), ("", 2, 1))
    write(2, ("a", 3, 7), ("b", 3, None))
    assert documents(sink) == {"a": 3, "b": 1, "[null]": 2, '[""]': 2, "null": 1}


@pytest.mark.parametrize("is_users_own", [False, True])
def test_an_index_that_is_gone_is_not_begun_anew_in_silence(spark, server, sink, is_users_own):
    client = search_client([server.url])
    if is_users_own:
        client.indices.create(index=sink.index)
    writer = open_sink(sink)
    writer.write(rows(spark, a=1), batch(0))
    client.indices.delete(index=sink.index if is_users_own else f"{sink.index}_g1")
    for driver in (writer, open_sink(sink)):
        with pytest.raises((SinkError, FencedError), match=r"is gone, .* batch 0 is in it|epoch"):
            driver.write(rows(spark, b=2), batch(1))
    assert not client.indices.exists(index=sink.index)
    # As the message says.
    open_sink(sink, generation=2).write(rows(spark, a=1, b=2), batch(0))
    assert documents(sink) == {"a": 1, "b": 2}


def test_large_documents_go_in_requests_that_a_server_takes():
    """A server refuses more than 100 MB, which 2,000 rows may have."""
    kib = [1, 5_000, 3_000, 9_000, 1] + [0] * 5_000
    rows = [{"id": str(number), "body": "x" * size * 1024} for number, size in enumerate(kib)]
    requests = list(_requests(rows))
    assert [row for request in requests for row in request] == rows
    assert [len(request) for request in requests] == [3, 1, 2_000, 2_000, 1_001]


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
    markers = [Marker([server.url], "orders", 1, sink.index) for _ in range(2)]
    for marker in markers:
        marker.claim(lambda *_: (sink.index, ""))
    assert [marker.stored.epoch for marker in markers] == [1, 2]


def test_fields_that_only_one_generation_has_are_named(spark, sink):
    open_sink(sink).write(rows(spark, a=1, b=2), batch(0))
    new = open_sink(sink, generation=2, shadow=True)
    new.write(rows(spark, a=1, b=2).selectExpr("k", "v", "v AS total"), batch(0))
    found = sink.output_generations("orders").diff(1, 2)
    assert (found.columns_old, found.columns_new) == ((), ("total",))
    assert (found.changed, found.same) == (2, 0)


def test_a_shadow_is_compared_swapped_in_and_swapped_back_while_both_drivers_run(
    spark, server, sink
):
    old = open_sink(sink)
    old.write(rows(spark, a=1, b=2, c=3), batch(0))
    new = open_sink(sink, generation=2, shadow=True)
    new.write(rows(spark, a=1, b=20, d=4), batch(0))
    assert documents(sink) == {"a": 1, "b": 2, "c": 3}
    generations = sink.output_generations("orders")
    found = generations.diff(1, 2)
    assert (found.only_old, found.only_new, found.changed, found.same) == (1, 1, 1, 1)
    assert found.examples[0] == ('{"k": "b", "v": 2}', '{"k": "b", "v": 20}')
    assert len(generations.diff(1, 2, examples_max=1).examples) == 1
    assert (found.columns_old, found.columns_new) == ((), ())
    client = search_client([server.url])
    mappings = client.indices.get_mapping(index=f"{sink.index}_g*").values()
    assert len({str(each) for each in mappings}) == 1

    generations.swap(2)
    assert documents(sink) == {"a": 1, "b": 20, "d": 4}
    # Neither driver was told: each goes on in its own generation's index.
    old.write(rows(spark, e=5), batch(1))
    new.write(rows(spark, f=6), batch(1))
    assert documents(sink) == {"a": 1, "b": 20, "d": 4, "f": 6}
    assert [(each.generation, each.is_live) for each in generations.all()] == [
        (1, False),
        (2, True),
    ]

    generations.swap(1)
    assert documents(sink) == {"a": 1, "b": 2, "c": 3, "e": 5}
    generations.swap(1)  # once more changes nothing
    assert generations.diff(1, 1).is_none
    with pytest.raises(SinkError, match="readers see generation 1"):
        generations.discard(1)
    generations.discard(2)
    with pytest.raises(FencedError):
        new.write(rows(spark, g=7), batch(2))
    assert [each.generation for each in generations.all()] == [1]
    with pytest.raises(SinkError, match="no generation 2"):
        generations.swap(2)
    # The number may be used again; its former driver stays fenced.
    again = open_sink(sink, generation=2, shadow=True)
    again.write(rows(spark, z=1), batch(0))
    with pytest.raises(FencedError):
        new.write(rows(spark, g=7), batch(0))
    generations.swap(2)
    assert documents(sink) == {"z": 1}


@pytest.mark.parametrize("is_begun_again", [False, True])
def test_a_zombies_task_brings_nothing_back_of_what_was_thrown_away(
    spark, server, sink, monkeypatch, is_begun_again
):
    open_sink(sink).write(rows(spark, a=1), batch(0))
    zombie = open_sink(sink, generation=2, shadow=True)
    zombie.write(rows(spark, a=2), batch(0))
    index = zombie._index

    def wake_late(*arguments):
        sink.output_generations("orders").discard(2)
        if is_begun_again:
            open_sink(sink, generation=2, shadow=True)
        index(*arguments)

    monkeypatch.setattr(zombie, "_index", wake_late)
    with pytest.raises(Exception, match="is not an alias"):
        zombie.write(rows(spark, zombie=666), batch(1))
    client = search_client([server.url])
    shadow = f"{sink.index}_g2"
    assert client.indices.exists(index=shadow) == is_begun_again
    client.indices.refresh(index=f"{shadow}*")
    assert client.count(index=f"{shadow}*")["count"] == 0


def test_a_generation_among_anothers_documents_is_refused(spark, server, sink):
    open_sink(sink).write(rows(spark, a=1), batch(0))
    with pytest.raises(SinkError, match=r"holds the documents of generation 1.*--shadow"):
        open_sink(sink, generation=2)
    client = search_client([server.url])
    client.index(index=f"{sink.index}_g2", id="somebody", body={"v": 1}, params={"refresh": "true"})
    with pytest.raises(SinkError, match="documents that belong to no generation"):
        open_sink(sink, generation=2, shadow=True)
    client.delete(index=f"{sink.index}_g2", id="somebody")
    open_sink(sink, generation=2, shadow=True)
    # Its own restarts need no flag once it is there.
    open_sink(sink, generation=2)


def test_an_index_that_is_no_alias_takes_no_shadow(spark, server, sink):
    search_client([server.url]).indices.create(index=sink.index)
    open_sink(sink).write(rows(spark, a=1), batch(0))
    assert documents(sink) == {"a": 1}
    with pytest.raises(SinkError, match="only an alias can be swapped"):
        open_sink(sink, generation=2, shadow=True)


def test_a_correction_replaces_a_document_and_the_jobs_next_write_wins(spark, sink):
    writer = open_sink(sink)
    for number in range(3):
        writer.write(rows(spark, a=number, b=number), batch(number))
    correct(sink, rows(spark, a=98), 5)
    correct(sink, rows(spark, a=99), 6)
    assert documents(sink) == {"a": 99, "b": 2}
    writer.write(rows(spark, a=3), batch(3))
    assert documents(sink) == {"a": 3, "b": 2}


def test_a_correction_of_the_same_version_replaces_the_document(spark, sink):
    versioned = dataclasses.replace(sink, version="at")
    frame = spark.createDataFrame([("a", 1, 7)], "k STRING, v INT, at INT")
    open_sink(versioned).write(frame, batch(0))
    right = spark.createDataFrame([("a", 2, 7)], "k STRING, v INT, at INT")
    correct(versioned, right)
    assert documents(sink) == {"a": 2}


def test_what_is_newer_than_its_correction_stays_and_is_counted(spark, sink, monkeypatch):
    writer = open_sink(sink)
    writer.write(rows(spark, a=1, b=1), batch(0))
    monkeypatch.setattr(writer, "_mark", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        writer.write(rows(spark, a=2), batch(1))
    with capture_logs() as said:
        correct(sink, rows(spark, a=99, b=99))
    assert documents(sink) == {"a": 2, "b": 99}
    (warning,) = [each for each in said if each["log_level"] == "warning"]
    assert warning["documents"] == 1


def test_corrections_go_where_readers_look(spark, sink):
    open_sink(sink).write(rows(spark, a=1), batch(0))
    correct(sink, rows(spark, a=2), 1)
    open_sink(sink, generation=2, shadow=True).write(rows(spark, a=3), batch(0))
    sink.output_generations("orders").swap(2)
    correct(sink, rows(spark, a=4), 2)
    assert documents(sink) == {"a": 4}
    sink.output_generations("orders").swap(1)
    assert documents(sink) == {"a": 2}


def test_a_swap_in_the_middle_of_a_correction_fails_it(spark, sink):
    open_sink(sink).write(rows(spark, a=1), batch(0))
    open_sink(sink, generation=2, shadow=True).write(rows(spark, a=3), batch(0))
    late = open_sink(sink, Delivery.AT_LEAST_ONCE, job="orders.late")
    sink.output_generations("orders").swap(2)
    with pytest.raises(SinkError, match="swapped meanwhile"):
        late.write(rows(spark, a=4), Batch(batch_id=1))
    correct(sink, rows(spark, a=4), 1)
    assert documents(sink) == {"a": 4}


def test_what_no_job_wrote_is_not_corrected(spark, sink):
    with pytest.raises(SinkError, match="no documents of orders"):
        correct(sink, rows(spark, a=1))


def test_of_several_rows_of_a_key_the_last_one_of_their_partition_wins(spark, sink):
    """Of one request, of several, and of several Arrow batches."""
    writer = open_sink(sink)
    found = [(f"k{number % 10}", number) for number in range(12_000)]
    frame = spark.createDataFrame(found, "k STRING, v INT").coalesce(1)
    writer.write(frame, batch(0))
    expected = {f"k{digit}": 11_990 + digit for digit in range(10)}
    assert documents(sink) == expected


def test_rows_of_a_key_without_an_order_are_refused(spark, sink):
    def of_two_tasks(*found):
        return spark.createDataFrame(found, "k STRING, v INT").repartitionByRange(2, "v")

    writer = open_sink(sink)
    assert of_two_tasks(("a", 1), ("a", 2)).rdd.getNumPartitions() == 2
    with pytest.raises(Exception, match=r"several rows.*id 'a'.*version"):
        writer.write(of_two_tasks(("a", 1), ("a", 2)), batch(0))
    assert open_sink(sink).stored == StoredProgress(epoch=2)


def test_what_is_no_json_number_is_set_aside(spark, sink):
    nan, inf = float("nan"), float("inf")
    schema = (
        "k STRING, x DOUBLE, f FLOAT, xs ARRAY<DOUBLE>, s STRUCT<a: INT, d: FLOAT>,"
        " m MAP<STRING, ARRAY<STRUCT<d: DOUBLE>>>"
    )
    good = ("good", 1.5, None, [1.0, None], (1, 2.0), {"a": [(1.0,), None], "b": None})
    found = [
        good,
        ("nulls", None, None, None, None, None),
        ("x", nan, *good[2:]),
        ("f", 1.0, -inf, *good[3:]),
        ("xs", 1.0, None, [None, inf], *good[4:]),
        ("s", 1.0, None, [], (1, nan), None),
        ("m", 1.0, None, [], None, {"a": [(1.0,), (nan,)]}),
    ]
    frame = spark.createDataFrame(found, schema)
    writer = open_sink(sink)
    reasons = {row[0]: row[1] for row in frame.select("k", writer.unfit(frame)).collect()}
    why = "has a number that is not finite, which JSON does not have"
    assert reasons == {"good": None, "nulls": None} | {
        name: f"{name} {why}" for name in ("x", "f", "xs", "s", "m")
    }
    writer.write(fitting(writer, frame), batch(0))
    assert documents(sink).keys() == {"good", "nulls"}
