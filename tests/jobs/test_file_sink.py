"""Parquet files that become visible by one commit, with the batch's progress: Delta's and ours."""

import contextlib
import dataclasses
import os
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from faults.disk import can_mount, fill, small_disk
from headrace_jobs.declaration import Delivery
from headrace_jobs.progress.offsets import TopicPartition
from headrace_jobs.progress.stored import Batch, FencedError, GapError
from headrace_jobs.sinks import files as files_module
from headrace_jobs.sinks.files import FileTable
from headrace_jobs.sinks.files_plain import PlainLog, committed_files
from headrace_jobs.sinks.protocol import Run, SinkError

P0 = TopicPartition("in", 0)


def batch(batch_id, checkpoint="c"):
    """A batch of ten records."""
    return Batch(
        batch_id=batch_id,
        checkpoint=checkpoint,
        begin={P0: batch_id * 10},
        end={P0: batch_id * 10 + 10},
    )


@pytest.fixture(params=["delta", "parquet"])
def sink(request, tmp_path):
    return FileTable(path=str(tmp_path / "table"), form=request.param)


@pytest.fixture
def open_sink(sink):
    """Open the table as a new driver does."""

    def open_it(delivery=Delivery.EXACTLY_ONCE, **changes):
        run = Run(job="orders", generation=1, delivery=delivery, bootstrap_servers="")
        return dataclasses.replace(sink, **changes).open(run)

    return open_it


def rows(spark, *values):
    return spark.createDataFrame([(value,) for value in values], "k STRING")


def table(sink):
    """What somebody else's reader finds."""
    if sink.form == "delta":
        return sorted(DeltaTable(sink.path).to_pyarrow_table()["k"].to_pylist())
    files = [str(path) for path in committed_files(sink.path)]
    found = pyarrow.dataset.dataset(files).to_table() if files else pa.table({"k": []})
    return sorted(found["k"].to_pylist())


@pytest.mark.spark
@pytest.mark.parametrize("delivery", list(Delivery))
def test_batches_are_appended_once_and_progress_is_stored(spark, sink, open_sink, delivery):
    writer = open_sink(delivery)
    writer.write(rows(spark, "a", "b"), batch(0))
    writer.write(rows(spark, "c"), batch(1))
    writer.write(rows(spark, "c"), batch(1))
    writer.write(rows(spark), batch(2))
    assert table(sink) == ["a", "b", "c"]
    stored = open_sink(delivery).stored
    assert (stored.epoch, stored.batch_id, stored.offsets) == (2, 2, {P0: 30})


@pytest.mark.spark
def test_a_zombie_is_fenced_by_the_commit(spark, sink, open_sink, monkeypatch):
    zombie = open_sink()
    zombie.write(rows(spark, "a"), batch(0))
    write_files = files_module.write_files

    def wake_late(*arguments):
        """The successor comes while the zombie's files are written and not committed."""
        with monkeypatch.context() as patch:
            patch.setattr(files_module, "write_files", write_files)
            open_sink().write(rows(spark, "b"), batch(1))
        return write_files(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(files_module, "write_files", wake_late)
        with pytest.raises(FencedError):
            zombie.write(rows(spark, "zombie"), batch(1))
    with pytest.raises(FencedError):
        zombie.write(rows(spark, "zombie"), batch(2))
    assert table(sink) == ["a", "b"]


@pytest.mark.spark
def test_files_of_a_killed_driver_are_never_read_and_cleared_away(
    spark, sink, open_sink, monkeypatch
):
    writer = open_sink()
    writer.write(rows(spark, "a"), batch(0))
    with monkeypatch.context() as patch:
        patch.setattr(writer._log, "commit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            writer.write(rows(spark, "b"), batch(1))
    assert table(sink) == ["a"]
    data = os.listdir(os.path.join(sink.path, "data"))  # noqa: PTH118, PTH208 - a plain listing
    successor = open_sink()
    assert successor.stored.offsets == {P0: 10}
    assert len(os.listdir(os.path.join(sink.path, "data"))) < len(data)  # noqa: PTH118, PTH208
    successor.write(rows(spark, "b"), batch(1))
    assert table(sink) == ["a", "b"]


@pytest.mark.spark
def test_a_commit_whose_answer_was_lost_is_read_back(spark, sink, open_sink, monkeypatch):
    writer = open_sink()
    writer.write(rows(spark, "a"), batch(0))
    commit = writer._log.commit

    def done_and_lost(*arguments):
        commit(*arguments)
        raise OSError("the file system went away")

    with monkeypatch.context() as patch:
        patch.setattr(writer._log, "commit", done_and_lost)
        with pytest.raises(OSError, match="went away"):
            writer.write(rows(spark, "b"), batch(1))
    open_sink().write(rows(spark, "b"), batch(1))
    assert table(sink) == ["a", "b"]


@pytest.mark.spark
def test_at_most_once_stores_progress_first(spark, sink, open_sink, monkeypatch):
    writer = open_sink(Delivery.AT_MOST_ONCE)
    writer.write(rows(spark, "a"), batch(0))
    with monkeypatch.context() as patch:
        patch.setattr(files_module, "write_files", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            writer.write(rows(spark, "lost"), batch(1))
    successor = open_sink(Delivery.AT_MOST_ONCE)
    successor.write(rows(spark, "lost"), batch(1))
    successor.write(rows(spark, "c"), batch(2))
    assert table(sink) == ["a", "c"]


@pytest.mark.spark
def test_a_full_disk_fails_the_batch_and_is_made_up_for_when_there_is_room(spark, sink, open_sink):
    if not can_mount():
        pytest.skip("NOT TESTED: mounting a small disk needs root")
    with small_disk(Path(sink.path), 8) as disk:
        open_sink().write(rows(spark, "a"), batch(0))
        writer = open_sink()
        somebody_elses = fill(disk)
        with pytest.raises(Exception, match=r"(?i)no space|os error 28|\[Errno 28\]"):
            writer.write(rows(spark, *(f"b{number}" for number in range(20_000))), batch(1))
        assert table(sink) == ["a"]
        somebody_elses.unlink()
        # The driver that is started again.
        writer = open_sink()
        writer.write(rows(spark, "b"), batch(1))
        writer.write(rows(spark, "b"), batch(1))
        assert table(sink) == ["a", "b"]
        if sink.form == "parquet":
            left = {path.name for path in (disk / "data").glob("*.parquet")}
            assert left == {path.name for path in committed_files(str(disk))}


@pytest.mark.spark
def test_a_gap_is_refused(spark, open_sink):
    writer = open_sink()
    writer.write(rows(spark, "a"), batch(0))
    with pytest.raises(GapError):
        writer.write(rows(spark, "b"), batch(2))


@pytest.mark.spark
def test_small_files_are_compacted_and_no_row_is_lost(spark, sink, open_sink):
    writer = open_sink(compact_after=4)
    for number in range(5):
        writer.write(rows(spark, f"row-{number}").coalesce(1), batch(number))
    assert table(sink) == [f"row-{number}" for number in range(5)]
    assert len(writer._log.files()) < 5
    writer.write(rows(spark, "row-5"), batch(5))
    assert len(table(sink)) == 6
    assert open_sink().stored.batch_id == 5


@pytest.mark.spark
def test_a_zombie_that_wakes_before_its_compaction_doubles_no_row(
    spark, sink, open_sink, monkeypatch
):
    """Its successor has compacted the same files."""
    zombie = open_sink(compact_after=2)
    zombie.write(rows(spark, "a").coalesce(1), batch(0))
    compact = zombie._log.compact

    def wake_late(*arguments):
        successor = open_sink(compact_after=2)
        successor.write(rows(spark, "c").coalesce(1), batch(2))
        assert len(successor._log.files()) == 1
        return compact(*arguments)

    monkeypatch.setattr(zombie._log, "compact", wake_late)
    zombie.write(rows(spark, "b").coalesce(1), batch(1))
    assert table(sink) == ["a", "b", "c"]
    with pytest.raises(FencedError):
        zombie.write(rows(spark, "zombie"), batch(2))
    assert table(sink) == ["a", "b", "c"]


@pytest.mark.spark
def test_readers_see_whole_batches_only(spark, sink, open_sink):
    writer = open_sink(compact_after=3)
    writer.write(rows(spark, *["x"] * 10), batch(0))
    seen, is_done = [], threading.Event()

    def read():
        while not is_done.is_set():
            # A file may have gone by the time that it is opened only if it is not committed.
            seen.append(len(table(sink)))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 8):
        writer.write(rows(spark, *["x"] * 10).repartition(4), batch(number))
    is_done.set()
    reader.join()
    assert seen
    assert all(count % 10 == 0 for count in seen)
    assert seen == sorted(seen)


@pytest.mark.spark
def test_a_delta_table_with_other_columns_is_refused(spark, tmp_path):
    run = Run(job="j", generation=1, delivery=Delivery.EXACTLY_ONCE, bootstrap_servers="")
    writer = FileTable(path=str(tmp_path)).open(run)
    writer.write(rows(spark, "a"), batch(0))
    with pytest.raises(SinkError, match="the table has the columns"):
        writer.write(spark.createDataFrame([(1,)], "k INT"), batch(1))


def test_a_log_that_cannot_be_read_is_an_error_that_names_it(sink, open_sink):
    commit = "_delta_log/00000000000000000000.json"
    if sink.form == "parquet":
        commit = "_headrace_log/00000000000000000001.json"
    path = Path(sink.path) / commit
    path.parent.mkdir(parents=True)
    path.write_text("garbage")
    for use in (open_sink, sink.output_generations("orders").all):
        with pytest.raises(
            SinkError, match=r"cannot be read as a Delta table|is no commit"
        ) as refused:
            use()
        assert len(str(refused.value).splitlines()) == 1


def test_what_files_cannot_do_is_refused():
    exactly_once = Delivery.EXACTLY_ONCE
    assert "update mode" in FileTable(path="/t").refusal(exactly_once, "update")
    assert "mount one" in FileTable(path="s3a://b/t").refusal(exactly_once, "append")


def test_the_plain_log_keeps_every_commit_of_writers_that_race(tmp_path):
    """Jobs share a table: each has its progress, and none loses another's files."""
    from headrace_jobs.progress.stored import StoredProgress
    from headrace_jobs.sinks.files_log import ConflictError, DataFile

    def append(name):
        log = PlainLog(tmp_path, name, 1)
        for number in range(30):
            file = DataFile(path=f"data/{name}-{number}", rows=1, bytes=1)
            while True:
                log.load()
                with contextlib.suppress(ConflictError):
                    log.commit(StoredProgress(epoch=1, batch_id=number), [file])
                    break

    threads = [threading.Thread(target=append, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(committed_files(tmp_path)) == 90
    assert [PlainLog(tmp_path, name, 1).load().progress.batch_id for name in "abc"] == [29] * 3


@pytest.mark.spark
def test_a_file_has_the_rows_that_parquet_says(spark, sink, open_sink):
    open_sink().write(rows(spark, "a", "b").coalesce(1), batch(0))
    if sink.form == "parquet":
        (path,) = committed_files(sink.path)
        assert pq.read_metadata(path).num_rows == 2
        assert path.name.startswith(path.name[:8] + "-g1-b0-e1-p0-")
