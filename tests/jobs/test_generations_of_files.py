"""A new generation beside the old one in a table of files: compared, swapped in, gone back from."""

import threading

import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from headrace_jobs.declaration import Job, Topic, problems
from headrace_jobs.delivery import Delivery
from headrace_jobs.progress.offsets import TopicPartition
from headrace_jobs.progress.stored import Batch, FencedError
from headrace_jobs.sinks import files as files_module
from headrace_jobs.sinks.files import FileTable
from headrace_jobs.sinks.files_plain import committed_files
from headrace_jobs.sinks.only import Only
from headrace_jobs.sinks.protocol import Run, SinkError

pytestmark = pytest.mark.spark

P0 = TopicPartition("in", 0)


def batch(batch_id):
    begin, end = {P0: batch_id * 10}, {P0: batch_id * 10 + 10}
    return Batch(batch_id=batch_id, checkpoint="c", begin=begin, end=end)


@pytest.fixture(params=["delta", "parquet"])
def sink(request, tmp_path):
    return FileTable(path=str(tmp_path / "table"), form=request.param, compact_after=4)


def open_sink(sink, generation, *, shadow=False, delivery=Delivery.EXACTLY_ONCE, job="orders"):
    run = Run(
        job=job,
        generation=generation,
        delivery=delivery,
        bootstrap_servers="",
        is_shadow=shadow,
    )
    return sink.open(run)


def rows(spark, *values):
    return spark.createDataFrame([(value,) for value in values], "k STRING").coalesce(1)


def seen(sink):
    """What somebody else's reader finds."""
    if sink.form == "delta":
        return sorted(DeltaTable(sink.path).to_pyarrow_table()["k"].to_pylist())
    files = [str(path) for path in committed_files(sink.path)]
    return sorted(pyarrow.dataset.dataset(files).to_table()["k"].to_pylist()) if files else []


def test_columns_that_only_one_generation_has_are_named(spark, tmp_path):
    """Rows of a file that lacks a column have null there, as for readers."""
    sink = FileTable(path=str(tmp_path / "table"), form="parquet")
    old, new = open_sink(sink, 1), open_sink(sink, 2, shadow=True)
    old.write(spark.sql("SELECT 'a' AS k, 1 AS v"), batch(0))
    new.write(spark.sql("SELECT 'a' AS k, 1 AS v"), batch(0))
    generations = sink.output_generations("orders")
    assert generations.diff(1, 2).is_none
    old.write(spark.sql("SELECT 'b' AS k, 2 AS v, 3 AS gone"), batch(1))
    new.write(spark.sql("SELECT 'b' AS k, 2 AS v, 3 AS total"), batch(1))
    found = generations.diff(1, 2)
    assert (found.columns_old, found.columns_new) == (("gone",), ("total",))
    assert (found.only_old, found.only_new, found.same, found.is_none) == (2, 2, 0, False)
    assert ('{"gone": null, "k": "a", "v": 1}', None) in found.examples
    # One more column of the old one's that its first file does not have.
    new = open_sink(sink, 3, shadow=True)
    new.write(
        spark.sql("SELECT * FROM VALUES ('a', 1, NULL), ('b', 2, 3) AS t(k, v, gone)"), batch(0)
    )
    assert generations.diff(1, 3).is_none


def test_a_shadow_is_compared_swapped_in_and_swapped_back_while_both_drivers_run(spark, sink):
    old = open_sink(sink, 1)
    old.write(rows(spark, "a", "b", "b"), batch(0))
    new = open_sink(sink, 2, shadow=True)
    new.write(rows(spark, "a", "b", "c"), batch(0))
    assert seen(sink) == ["a", "b", "b"]
    generations = sink.output_generations("orders")
    found = generations.diff(1, 2)
    assert (found.only_old, found.only_new, found.changed, found.same) == (1, 1, 0, 2)
    assert sorted(found.examples, key=str) == [('{"k": "b"}', None), (None, '{"k": "c"}')]
    assert len(generations.diff(1, 2, examples_max=1).examples) == 1

    generations.swap(2)
    assert seen(sink) == ["a", "b", "c"]
    # Neither driver was told: each goes on in its own generation's rows.
    old.write(rows(spark, "e"), batch(1))
    new.write(rows(spark, "f"), batch(1))
    assert seen(sink) == ["a", "b", "c", "f"]
    assert [(each.generation, each.is_live) for each in generations.all()] == [
        (1, False),
        (2, True),
    ]

    generations.swap(1)
    assert seen(sink) == ["a", "b", "b", "e"]
    generations.swap(1)  # once more changes nothing
    assert generations.diff(1, 1).is_none
    # Drivers that are started again go on where they were, each epoch above the last.
    for generation in (1, 2):
        stored = open_sink(sink, generation).stored
        assert (stored.epoch, stored.batch_id, stored.offsets) == (2, 1, {P0: 20})
    new = open_sink(sink, 2)

    with pytest.raises(SinkError, match="readers see generation 1"):
        generations.discard(1)
    generations.discard(2)
    with pytest.raises(FencedError, match="thrown away"):
        new.write(rows(spark, "g"), batch(2))
    assert [each.generation for each in generations.all()] == [1]
    with pytest.raises(SinkError, match="no generation 2"):
        generations.swap(2)
    # The number may be used again, and nothing of what was thrown away comes back with it.
    again = open_sink(sink, 2, shadow=True)
    again.write(rows(spark, "z"), batch(0))
    with pytest.raises(FencedError):
        new.write(rows(spark, "g"), batch(0))
    generations.swap(2)
    assert seen(sink) == ["z"]


def test_a_swap_between_a_batchs_files_and_its_commit_mixes_no_rows(spark, sink, monkeypatch):
    old = open_sink(sink, 1)
    old.write(rows(spark, "old"), batch(0))
    new = open_sink(sink, 2, shadow=True)
    new.write(rows(spark, "new"), batch(0))
    write_files = files_module.write_files
    generations = sink.output_generations("orders")

    def swapped_after(generation):
        def write_and_swap(*arguments):
            done = write_files(*arguments)
            generations.swap(generation)
            return done

        return write_and_swap

    with monkeypatch.context() as patch:
        patch.setattr(files_module, "write_files", swapped_after(2))
        old.write(rows(spark, "old, too"), batch(1))
    assert seen(sink) == ["new"]
    with monkeypatch.context() as patch:
        patch.setattr(files_module, "write_files", swapped_after(1))
        new.write(rows(spark, "new, too"), batch(1))
    assert seen(sink) == ["old", "old, too"]
    generations.swap(2)
    assert seen(sink) == ["new", "new, too"]


def test_readers_see_one_generation_or_the_other_while_they_are_swapped(spark, sink):
    old = open_sink(sink, 1)
    old.write(rows(spark, *["old"] * 3), batch(0))
    new = open_sink(sink, 2, shadow=True)
    new.write(rows(spark, *["new"] * 5), batch(0))
    found, is_done = [], threading.Event()

    def read():
        while not is_done.is_set():
            found.append(tuple(seen(sink)))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(10):
            for generation in (2, 1):
                sink.output_generations("orders").swap(generation)
    finally:
        is_done.set()
        reader.join()
    assert set(found) <= {("old",) * 3, ("new",) * 5}
    assert len(found) > 3


def test_a_shadow_outlives_vacuum_and_compaction_and_its_files_are_read_again(spark, sink):
    old = open_sink(sink, 1)
    new = open_sink(sink, 2, shadow=True) if sink.form == "parquet" else None
    for number in range(6):
        old.write(rows(spark, f"old-{number}"), batch(number))
        new = new or open_sink(sink, 2, shadow=True)
        new.write(rows(spark, f"new-{number}"), batch(number))
    if sink.form == "delta":
        vacuum = DeltaTable(sink.path).vacuum
        vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    generations = sink.output_generations("orders")
    generations.swap(2)
    assert seen(sink) == [f"new-{number}" for number in range(6)]
    for number in range(6, 9):  # the compaction of a generation that has become the live one
        new.write(rows(spark, f"new-{number}"), batch(number))
    if sink.form == "delta":
        vacuum = DeltaTable(sink.path).vacuum
        vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert seen(sink) == [f"new-{number}" for number in range(9)]
    generations.swap(1)
    assert seen(sink) == [f"old-{number}" for number in range(6)]


def test_a_generation_among_anothers_rows_is_refused(spark, sink):
    open_sink(sink, 1).write(rows(spark, "a"), batch(0))
    with pytest.raises(SinkError, match=r"holds the rows of generation 1.*--shadow"):
        open_sink(sink, 2)
    # Its own restarts need no flag once it is there.
    open_sink(sink, 2, shadow=True).write(rows(spark, "b"), batch(0))
    open_sink(sink, 2).write(rows(spark, "c"), batch(1))
    assert seen(sink) == ["a"]
    # The job's own corrections are no other job's.
    open_sink(sink, 1, job="orders.late").write(rows(spark, "late"), batch(0))
    generations = sink.output_generations("orders")
    generations.swap(2)
    assert seen(sink) == ["b", "c"]
    generations.swap(1)
    assert seen(sink) == ["a", "late"]
    open_sink(sink, 1, job="others").write(rows(spark, "d"), batch(0))
    with pytest.raises(SinkError, match=r"rows of other jobs, too \(others\)"):
        generations.swap(2)


def test_files_that_a_compaction_replaced_are_left_to_their_readers_by_the_next_driver(spark, sink):
    writer = open_sink(sink, 1)
    for number in range(3):
        writer.write(rows(spark, f"row-{number}"), batch(number))
    is_delta = sink.form == "delta"
    files = DeltaTable(sink.path).file_uris() if is_delta else committed_files(sink.path)
    writer.write(rows(spark, "row-3"), batch(3))
    assert len(writer._log.files()) == 1
    open_sink(sink, 1)
    assert sum(pq.read_metadata(path).num_rows for path in files) == 3


def test_a_part_of_a_jobs_rows_can_have_a_shadow():
    part = Only(rows="true", columns=("k",), sink=FileTable(path="/t"))
    job = Job(
        name="orders",
        sources=(Topic("orders"),),
        transform=lambda records: records,
        sinks=(part,),
        generation=2,
        shadow=True,
    )
    assert problems(job) == []
