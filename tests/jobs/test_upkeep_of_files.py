"""What a table of files keeps for itself is bounded: commits, replaced files, what kills left."""

import contextlib
import json
import os
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from headrace_jobs.delivery import Delivery
from headrace_jobs.progress.stored import StoredProgress
from headrace_jobs.sinks import files_delta, files_plain
from headrace_jobs.sinks.files import FileTable
from headrace_jobs.sinks.files_log import ConflictError, DataFile
from headrace_jobs.sinks.files_plain import LOG, PlainLog, committed_files
from headrace_jobs.sinks.protocol import Run, SinkError

HOUR_SECONDS = 3600
#: Each so many commits one holds the whole state: here more often, so that a test makes fewer.
STATES = 5


@pytest.fixture(autouse=True)
def many_states(monkeypatch):
    monkeypatch.setattr(files_plain, "COMMITS_BETWEEN_STATES", STATES)


class KilledError(BaseException):
    """Where a test kills the driver."""


def killed(call, *, is_done=True):
    """A function in which the driver is killed: when it is done, or before."""

    def killed_call(*arguments):
        if is_done:
            call(*arguments)
        raise KilledError

    return killed_call


@contextlib.contextmanager
def killed_after(calls_max, monkeypatch):
    """The driver is killed before a system call that changes a file, after so many of them."""
    left = [calls_max]

    def counting(call):
        def counted(*arguments, **options):
            if left[0] == 0:
                raise KilledError
            left[0] -= 1
            return call(*arguments, **options)

        return counted

    with monkeypatch.context() as patch:
        for owner, name in ((os, "link"), (os, "fsync"), (Path, "unlink")):
            patch.setattr(owner, name, counting(getattr(owner, name)))
        yield


def open_log(root, form="parquet", generation=1, *, shadow=False):
    """Open a table's log and take the next epoch, as a driver does that starts."""
    run = Run(
        job="orders",
        generation=generation,
        delivery=Delivery.EXACTLY_ONCE,
        bootstrap_servers="",
        is_shadow=shadow,
    )
    if form == "delta" and not DeltaTable.is_deltatable(str(root)):
        DeltaTable.create(str(root), schema=pa.schema([("k", pa.int64())]))
    return FileTable(path=str(root), form=form, compact_after=4).open(run)._log


def open_log_again(root):
    """The log as its driver has it, which goes on."""
    log = PlainLog(root, "orders", 1)
    log.load()
    return log


def data_file(root, folder, name, *values, schema=None):
    """A file as a task writes it."""
    (root / folder).mkdir(parents=True, exist_ok=True)
    path = root / folder / name
    pq.write_table(pa.table({"k": list(values)}, schema=schema), path)
    return DataFile(path=f"{folder}/{name}", rows=len(values), bytes=path.stat().st_size)


def append(log, root, number, *, epoch=1):
    """A batch of one row in a file of its own."""
    prefix = f"{files_plain.file_prefix('orders', int(log._identity.rpartition('/')[2]))}"
    name = f"{prefix}b{number}-e{epoch}-p0-{number}.parquet"
    log.commit(
        StoredProgress(epoch=epoch, batch_id=number), [data_file(root, log.folder, name, number)]
    )


def seen(root, form="parquet"):
    """What readers find."""
    if form == "delta":
        return sorted(DeltaTable(str(root)).to_pyarrow_table()["k"].to_pylist())
    return sorted(
        value for path in committed_files(root) for value in pq.read_table(path)["k"].to_pylist()
    )


def commits(root):
    return sorted(int(path.stem) for path in (root / LOG).glob("*.json"))


def age(root, seconds=2 * HOUR_SECONDS):
    """Make everything in the log older."""
    for path in (root / LOG).iterdir():
        at = path.stat().st_mtime - seconds
        os.utime(path, (at, at))


def test_the_plain_log_keeps_the_commits_of_an_hour_and_one_state_before_them(tmp_path):
    log = open_log(tmp_path)
    for number in range(3 * STATES):
        append(log, tmp_path, number)
    assert commits(tmp_path)[0] == 1  # readers that began before have an hour to end
    age(tmp_path)
    for number in range(3 * STATES, 6 * STATES):
        append(log, tmp_path, number)
        assert seen(tmp_path) == list(range(number + 1))
    assert commits(tmp_path)[0] == 3 * STATES
    for _ in range(5):
        age(tmp_path)
        for _ in range(STATES):
            number += 1
            append(log, tmp_path, number)
        assert len(commits(tmp_path)) <= 2 * STATES
    assert seen(tmp_path) == list(range(number + 1))
    assert open_log(tmp_path).load().progress.batch_id == number


def test_a_kill_at_any_step_of_a_commit_and_of_pruning_leaves_a_whole_log(tmp_path, monkeypatch):
    """Each system call that changes a file is the last one once; readers look after each."""
    made, number = tmp_path / "made", -1
    log = open_log(made)
    # To just before a commit that holds the whole state, when there is much to prune.
    while log._state.version < 3 * STATES - 1:
        number += 1
        append(log, made, number)
        if number % STATES == 0:
            log.compact(4, f"{files_plain.file_prefix('orders', 1)}c")
    age(made)
    before, steps, is_done = list(range(number + 1)), 0, False
    while not is_done:
        root = tmp_path / str(steps)
        shutil.copytree(made, root)
        log = open_log_again(root)
        try:
            with killed_after(steps, monkeypatch):
                append(log, root, number + 1)
            is_done = True
        except KilledError:
            steps += 1
        found = seen(root)
        assert found in (before, [*before, number + 1])
        successor = open_log(root)
        for following in range(len(found), len(found) + 3 * STATES):
            if following % STATES == 0:
                age(root)
            append(successor, root, following)
        assert seen(root) == list(range(following + 1))
        # What the killed one left has gone with the next pruning that nobody kills.
        assert list((root / LOG).glob("*.partial")) == []
        assert len(commits(root)) <= 2 * STATES
        shutil.rmtree(root)
    assert steps > 4 + 2 * STATES


def test_readers_see_whole_commits_while_the_log_is_pruned_under_them(tmp_path, monkeypatch):
    monkeypatch.setattr(files_plain, "REPLACED_FILES_KEPT_SECONDS", -1.0)
    log = PlainLog(tmp_path, "orders", 1)
    log.load()
    found, is_done = [], threading.Event()

    def read():
        while not is_done.is_set():
            found.append(len(committed_files(tmp_path)))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(100):
            files = [DataFile(path=f"data/{number}-{at}", rows=1, bytes=1) for at in range(5)]
            log.commit(StoredProgress(epoch=1, batch_id=number), files)
    finally:
        is_done.set()
        reader.join()
    assert found
    assert all(count % 5 == 0 for count in found)
    assert found == sorted(found)
    assert len(commits(tmp_path)) <= STATES


def test_a_listing_that_lacks_a_commit_shows_no_later_one(tmp_path):
    log = PlainLog(tmp_path, "orders", 1)
    log.load()
    for number in range(4):
        log.commit(
            StoredProgress(epoch=1, batch_id=number),
            [DataFile(path=f"data/{number}", rows=1, bytes=1)],
        )
    (tmp_path / LOG / f"{3:020}.json").rename(tmp_path / "not listed yet")
    assert [path.name for path in committed_files(tmp_path)] == ["0", "1"]


def test_a_log_that_lacks_commits_is_an_error_and_no_empty_table(tmp_path):
    log = open_log(tmp_path)
    append(log, tmp_path, 0)
    (tmp_path / LOG / f"{1:020}.json").unlink()
    with pytest.raises(SinkError, match="lacks commits"):
        committed_files(tmp_path)


@pytest.mark.parametrize("seen_before", [0, 2, STATES - 1])
def test_a_driver_that_was_away_for_hours_does_not_take_a_number_that_was_pruned(
    tmp_path, seen_before
):
    live = open_log(tmp_path)
    zombie = PlainLog(tmp_path, "orders", 1)
    if not seen_before:
        (tmp_path / LOG / f"{1:020}.json").rename(tmp_path / "first")
        zombie.load()
        (tmp_path / "first").rename(tmp_path / LOG / f"{1:020}.json")
    for number in range(4 * STATES):
        append(live, tmp_path, number)
        if number + 2 == seen_before:
            zombie.load()
        if number == 3 * STATES - 3:
            live.compact(4, f"{files_plain.file_prefix('orders', 1)}c")
            age(tmp_path)
    assert commits(tmp_path)[0] > seen_before + 1
    with pytest.raises(ConflictError):
        append(zombie, tmp_path, 666)
    # What it says was removed is not believed when the log is pruned next.
    ghost = json.loads((tmp_path / LOG / f"{seen_before + 1:020}.json").read_text())
    ghost["remove"] = [f"data/{path.name}" for path in committed_files(tmp_path)]
    (tmp_path / LOG / f"{seen_before + 1:020}.json").write_text(json.dumps(ghost))
    age(tmp_path)
    for _ in range(2 * STATES):
        number += 1
        append(live, tmp_path, number)
    assert seen(tmp_path) == list(range(number + 1))
    assert commits(tmp_path)[0] > seen_before + 1


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_a_shadow_is_compacted_and_what_it_replaced_is_deleted_later(tmp_path, form, monkeypatch):
    live = open_log(tmp_path, form)
    append(live, tmp_path, 0)
    shadow = open_log(tmp_path, form, 2, shadow=True)
    prefix = f"{files_plain.file_prefix('orders', 2)}"

    def batch(number):
        append(shadow, tmp_path, number)
        shadow.compact(4, f"{prefix}c")

    for number in range(20):
        batch(number)
        assert len(shadow.files()) <= 4
    assert seen(tmp_path, form) == [0]
    folder = tmp_path / shadow.folder
    assert len(list(folder.glob(f"{prefix}*.parquet"))) > 20  # one who compares may still read them
    if form == "delta":
        monkeypatch.setattr(files_delta, "REPLACED_FILES_KEPT_SECONDS", -1.0)
    else:
        monkeypatch.setattr(files_plain, "REPLACED_FILES_KEPT_SECONDS", -1.0)
    for number in range(20, 20 + 2 * STATES):
        batch(number)
    assert len(list(folder.glob(f"{prefix}*.parquet"))) < 20
    # A driver that starts again, and a swap, find all rows.
    shadow = open_log(tmp_path, form, 2)
    generations = FileTable(path=str(tmp_path), form=form).output_generations("orders")
    assert generations.diff(1, 2).only_new == number
    generations.swap(2)
    assert seen(tmp_path, form) == list(range(number + 1))
    generations.swap(1)
    assert seen(tmp_path, form) == [0]
    generations.swap(2)
    shadow.load()
    for _ in range(3):
        number += 1
        append(shadow, tmp_path, number, epoch=2)
    assert seen(tmp_path, form) == list(range(number + 1))
    if form == "delta":
        # What lay beside is linked into the table now, and kept there no longer.
        assert len(list((tmp_path / files_delta._shadow_folder("orders/2")).iterdir())) <= 1


def merged(folder, prefix):
    """Files that compaction made, committed or not."""
    return {path.name for path in folder.glob(f"{prefix}c*")}


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_a_kill_at_any_step_of_a_shadows_compaction_loses_and_doubles_no_row(
    tmp_path, form, monkeypatch
):
    append(open_log(tmp_path, form), tmp_path, 666)
    shadow = open_log(tmp_path, form, 2, shadow=True)
    owner = files_delta if form == "delta" else files_plain
    prefix = f"{files_plain.file_prefix('orders', 2)}"

    def rows():
        files = open_log(tmp_path, form, 2).files()
        return sorted(
            value for path in files for value in pq.read_table(tmp_path / path)["k"].to_pylist()
        )

    number = -1
    commit = "_write" if form == "delta" else "_add"
    for step in ("merge", "merged", "committed"):
        for _ in range(4):
            number += 1
            append(shadow, tmp_path, number)
        before = merged(tmp_path / shadow.folder, prefix)
        with monkeypatch.context() as patch:
            if step == "committed":
                patch.setattr(shadow, commit, killed(getattr(shadow, commit)))
            else:
                patch.setattr(owner, "merge", killed(owner.merge, is_done=step == "merged"))
            with pytest.raises(KilledError):
                shadow.compact(4, f"{prefix}c")
        assert rows() == list(range(number + 1))
        shadow = open_log(tmp_path, form, 2)
        if step != "committed":
            # What was merged and not committed is gone.
            assert merged(tmp_path / shadow.folder, prefix) == before
        shadow.compact(4, f"{prefix}c")
        assert rows() == list(range(number + 1))
        shadow = open_log(tmp_path, form, 2)


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_files_of_killed_tasks_and_zombies_are_cleared_away(tmp_path, form):
    append(open_log(tmp_path, form), tmp_path, 0)
    shadow = open_log(tmp_path, form, 2, shadow=True)
    append(shadow, tmp_path, 0)
    prefix = files_plain.file_prefix("orders", 2)
    # A task of the batch that was tried again, and one of the driver before the last.
    data_file(tmp_path, shadow.folder, f"{prefix}b0-e1-p0-77.parquet", 666)
    shadow = open_log(tmp_path, form, 2)
    data_file(tmp_path, shadow.folder, f"{prefix}b1-e1-p0-78.parquet", 666)
    shadow = open_log(tmp_path, form, 2)
    left = {
        f"{shadow.folder}/{path.name}" for path in (tmp_path / shadow.folder).glob(f"{prefix}*")
    }
    assert left == shadow.files()


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_what_zombies_and_kills_leave_of_a_discarded_generation_is_cleared_away(
    tmp_path, form, monkeypatch
):
    append(open_log(tmp_path, form), tmp_path, 0)
    shadow = open_log(tmp_path, form, 2, shadow=True)
    append(shadow, tmp_path, 0)
    folder = tmp_path / shadow.folder
    generations = FileTable(path=str(tmp_path), form=form).output_generations("orders")
    with monkeypatch.context() as patch:
        # The command is killed before it deletes files.
        patch.setattr(files_delta.shutil, "rmtree", lambda *_, **__: None)
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        generations.discard(2)
    prefix = files_plain.file_prefix("orders", 2)
    assert list(folder.glob(f"{prefix}*"))
    data_file(tmp_path, shadow.folder, f"{prefix}b1-e1-p0-78.parquet", 666)
    live = open_log(tmp_path, form)
    if form == "parquet":
        for number in range(1, 3 * STATES):
            age(tmp_path)
            append(live, tmp_path, number, epoch=2)
    assert list(folder.glob(f"{prefix}*")) == []
    assert seen(tmp_path, form)[0] == 0


def test_files_of_before_a_change_of_columns_do_not_keep_the_others_from_compaction(tmp_path):
    log = open_log(tmp_path)
    prefix = files_plain.file_prefix("orders", 1)
    old = data_file(
        tmp_path, "data", f"{prefix}b0-e1-p0-0.parquet", 0, schema=pa.schema([("k", pa.int32())])
    )
    log.commit(StoredProgress(epoch=1, batch_id=0), [old])
    for number in range(1, 30):
        append(log, tmp_path, number)
        log.compact(4, f"{prefix}c")
        assert len(log.files()) <= 4
    assert seen(tmp_path) == list(range(30))
    version = log._state.version
    assert log.compact(2, f"{prefix}c") in (0, len(log.files()))
    assert log.compact(2, f"{prefix}c") == 0
    assert log._state.version - version <= 1


def test_the_log_of_a_delta_table_is_checkpointed(tmp_path):
    log = open_log(tmp_path, "delta")
    for number in range(110):
        append(log, tmp_path, number)
    assert list((tmp_path / "_delta_log").glob("*.checkpoint.parquet"))
    assert len(list((tmp_path / "_headrace").rglob("*.json"))) <= 2
