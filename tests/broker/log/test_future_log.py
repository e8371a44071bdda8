"""A log that moves to another log directory of the same broker, and what a kill leaves of it."""

import os
import random
import uuid
from pathlib import Path

import pytest

from headrace_broker.log.checkpoints import TopicPartition
from headrace_broker.log.config import LogConfig
from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.log.future_log import FutureLog
from headrace_broker.log.log_directories import LogDirectories
from headrace_broker.log.validation import AppendOrigin
from headrace_broker.protocol.types import TopicId
from support.log import START_MS, ManualClock, append, batch_of, compact, content, marker

KEY = TopicPartition("t", 0)
TOPIC_ID = TopicId(uuid.UUID(int=7))
CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=100)
STEP = 300


class Directories:
    """Two log directories, `a` with a log."""

    def __init__(self, root, config=CONFIG):
        self.root, self.config = root, config
        self.open()
        self.log = self.a.create(*KEY, config, topic_id=TOPIC_ID)

    def open(self):
        paths = [self.root / "a", self.root / "b"]
        self.all = LogDirectories.open(
            paths, paths[0], node_id=1, cluster_id="", clock=ManualClock()
        )
        self.a, self.b = self.all

    def kill(self):
        """End the process; the next one opens what it finds."""
        for directory in self.all:
            directory.abandon()
        self.open()
        self.all.settle(*KEY)
        directory = self.all.place(*KEY, self.b.directory_id)
        recovered = directory.recovery(*KEY, self.config)
        recovered = None if recovered is None else recovered()
        self.log = directory.create(*KEY, self.config, topic_id=TOPIC_ID, recovered=recovered)
        return directory

    def move(self):
        future = FutureLog(KEY, self.log, self.b, TOPIC_ID)
        copy(future)
        swap(self, future)
        return future

    def folders(self):
        return {
            each.path.name: sorted(path.name for path in each.path.glob("t-*"))
            for each in (self.a, self.b)
        }


@pytest.fixture
def directories(tmp_path):
    opened = []

    def open_all(name="life", config=CONFIG):
        opened.append(Directories(tmp_path / name, config))
        return opened[-1]

    yield open_all
    for each in opened:
        for directory in each.all:
            directory.abandon()


def copy(future):
    while (step := future.next_step(STEP)) is not None:
        step.run()


def swap(directories, future):
    future.prepare()()
    future.prepared()
    copy(future)
    directories.log = future.swap(needs_flush=False)
    future.remove_source(directories.a)


def fill(log, count=30, **fields):
    for number in range(count):
        append(log, batch_of(b"%d" % number * 20, **fields))


def states(log):
    return dict(log.producers.items())


def test_a_log_moves_with_all_that_is_known_of_it(directories):
    life = directories()
    fill(life.log)
    append(life.log, batch_of(b"x", producer_id=5, producer_epoch=0, base_sequence=0), epoch=3)
    life.log.high_watermark = 20
    before, known, epochs = content(life.log), states(life.log), life.log.leader_epochs.entries
    future = life.move()
    assert life.log is future.log
    assert life.log is life.b.logs[KEY]
    assert KEY not in life.a.logs
    assert life.folders()["b"] == ["t-0"]
    assert [name.endswith("-delete") for name in life.folders()["a"]] == [True]
    assert life.log.directory == life.b.path / "t-0"
    assert content(life.log) == before
    assert states(life.log) == known
    assert life.log.leader_epochs.entries == epochs
    assert life.log.high_watermark == 20
    append(life.log, batch_of(b"more"), epoch=3)
    life.log.roll(START_MS)
    life.log.flush()
    after = content(life.log)
    assert life.kill() is life.b
    assert content(life.log) == after
    assert states(life.log).keys() == known.keys()


def test_appends_and_deletions_go_on_while_it_is_copied(directories):
    life = directories()
    fill(life.log)
    future = FutureLog(KEY, life.log, life.b, TOPIC_ID)
    future.next_step(STEP).run()
    fill(life.log, 5)
    life.log.delete_records_before(10)
    assert future.offset_lag > 0
    assert not future.is_complete
    copy(future)
    assert future.is_complete
    fill(life.log, 1)
    before = content(life.log)
    swap(life, future)
    assert life.log.log_start_offset == 10
    assert content(life.log) == before
    life.kill()
    assert life.log.log_start_offset == 10
    assert content(life.log) == before


def test_a_deletion_beyond_what_is_copied_begins_the_copy_anew(directories):
    life = directories()
    fill(life.log)
    future = FutureLog(KEY, life.log, life.b, TOPIC_ID)
    future.next_step(STEP).run()
    life.log.high_watermark = life.log.log_end_offset
    life.log.delete_records_before(life.log.log_end_offset)
    life.log.apply_retention(START_MS)
    copy(future)
    swap(life, future)
    assert (life.log.log_start_offset, life.log.log_end_offset) == (30, 30)


def test_a_log_that_begins_within_a_batch(directories):
    life = directories()
    append(life.log, batch_of(b"a", b"b", b"c"))
    fill(life.log, 3)
    life.log.delete_records_before(1)
    life.move()
    assert (life.log.log_start_offset, life.log.log_end_offset) == (1, 6)
    life.kill()
    assert (life.log.log_start_offset, life.log.log_end_offset) == (1, 6)


def test_a_truncation_is_followed(directories):
    life = directories()
    fill(life.log)
    future = FutureLog(KEY, life.log, life.b, TOPIC_ID)
    copy(future)
    life.log.truncate_to(12)
    append(life.log, batch_of(b"other"), epoch=4)
    assert not future.is_complete
    assert future.was_cut
    before, epochs = content(life.log), life.log.leader_epochs.entries
    swap(life, future)
    assert content(life.log) == before
    assert life.log.leader_epochs.entries == epochs
    assert life.b._recovery_points[KEY] <= life.log.log_end_offset


def test_no_record_is_missing_of_a_log_that_ended_behind_its_last_batch(directories):
    life = directories()
    fill(life.log)
    life.log.skip_to(90)
    life.move()
    assert life.log.log_end_offset == 90
    for each in life.all:
        each.close()
    life.open()
    log = life.b.create(*KEY, life.config, topic_id=TOPIC_ID)
    assert log.log_end_offset == 90
    assert not log.is_damaged


def test_nothing_is_compacted_while_it_is_copied(directories):
    config = LogConfig(segment_bytes=500, cleanup_policy=frozenset({"compact"}))
    life = directories(config=config)
    for _ in range(20):
        append(life.log, batch_of(b"v" * 50, key=b"k"))
    life.log.high_watermark = life.log.log_end_offset
    future = FutureLog(KEY, life.log, life.b, TOPIC_ID)
    assert not compact(life.log, START_MS)
    future.give_up()
    future.close()
    assert compact(life.log, START_MS)
    assert life.folders()["a"] == ["t-0"]
    assert [name.endswith("-delete") for name in life.folders()["b"]] == [True]


def test_an_aborted_transaction_stays_aborted(directories):
    life = directories()
    append(
        life.log, batch_of(b"x", producer_id=1, producer_epoch=0, base_sequence=0, attributes=16)
    )
    aborting = marker(1, 0, commit=False)
    life.log.append_as_leader(aborting, 0, now_ms=START_MS, origin=AppendOrigin.COORDINATOR)
    append(
        life.log, batch_of(b"y", producer_id=2, producer_epoch=0, base_sequence=0, attributes=16)
    )
    end = life.log.log_end_offset
    life.log.high_watermark = end
    before = life.log.aborted_transactions(0, end)
    assert len(before) == 1
    assert life.log.last_stable_offset == 2
    life.move()
    assert life.log.aborted_transactions(0, end) == before
    assert life.log.last_stable_offset == 2


class KilledError(BaseException):
    """The process is gone."""


CALLS = ("open", "pwrite", "write", "fsync", "replace", "rename", "unlink", "mkdir", "ftruncate")


def kill_at(monkeypatch, number):
    """End the process in its call `number` that may change a disk; return the count so far."""
    count = [0]

    def guard(call):
        def run(*args, **kwargs):
            count[0] += 1
            if count[0] >= number:
                raise KilledError
            return call(*args, **kwargs)

        return run

    for name in CALLS:
        monkeypatch.setattr(os, name, guard(getattr(os, name)))
    return count


def test_a_kill_at_any_step_leaves_one_log_with_every_record(directories, monkeypatch):
    number, ends = 0, set()
    while True:
        number += 1
        life = directories(f"life-{number}")
        fill(life.log)
        life.log.flush()
        before = content(life.log)
        with monkeypatch.context() as patched:
            kill_at(patched, number)
            try:
                life.move()
                is_over = True
            except KilledError:
                is_over = False
        directory = life.kill()
        ends.add(directory.path.name)
        assert content(life.log) == before, number
        live = [name for names in life.folders().values() for name in names if name == "t-0"]
        assert live == ["t-0"], (number, life.folders())
        assert not (life.log.directory / "leaving").exists()
        assert not (life.log.directory / "arriving").exists()
        for each in life.all:
            each.abandon()
        if is_over:
            break
    assert ends == {"a", "b"}
    assert number > 30


def test_a_copy_whose_rename_failed_does_not_count(directories, monkeypatch):
    life = directories()
    fill(life.log)
    future = FutureLog(KEY, life.log, life.b, TOPIC_ID)
    copy(future)
    future.prepare()()
    future.prepared()
    fsync, calls = os.fsync, []

    def fail(fd):
        if Path(f"/proc/self/fd/{fd}").readlink() == life.b.path:
            calls.append(fd)
            raise OSError(5, "the disk is gone")
        fsync(fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(LogDirectoryFailure):
            future.swap(needs_flush=False)
    assert calls
    assert life.folders() == {"a": ["t-0"], "b": ["t-0"]}
    append(life.log, batch_of(b"went on"))
    before = content(life.log)
    life.log.flush()
    assert life.kill() is life.a
    assert content(life.log) == before


def test_a_log_is_away_while_the_directory_it_may_have_moved_to_is(directories):
    life = directories()
    fill(life.log)
    future = FutureLog(KEY, life.log, life.b, TOPIC_ID)
    copy(future)
    future.prepare()()
    future.prepared()
    future.swap(needs_flush=False)
    for each in life.all:
        each.abandon()
    life.open()
    life.all.fail(life.b, "gone")
    life.all.settle(*KEY)
    assert life.all.place(*KEY, life.a.directory_id) is None
    life.all.close(broker_epoch=1)
    life.open()
    assert life.kill() is life.b


def test_a_copy_is_no_log_where_the_directory_with_the_log_is_away(directories):
    life = directories()
    fill(life.log)
    copy(FutureLog(KEY, life.log, life.b, TOPIC_ID))
    for each in life.all:
        each.abandon()
    life.open()
    life.all.fail(life.a, "gone")
    assert life.all.place(*KEY, life.b.directory_id) is None


def test_the_next_process_knows_what_was_wanted(directories):
    life = directories()
    copy(FutureLog(KEY, life.log, life.b, TOPIC_ID))
    for each in life.all:
        each.abandon()
    life.open()
    assert not life.a.take_futures(KEY, TOPIC_ID)
    assert not life.b.take_futures(KEY, TopicId(uuid.UUID(int=8)))
    assert [name.endswith("-delete") for name in life.folders()["b"]] == [True]
    life.kill()
    copy(FutureLog(KEY, life.log, life.b, TOPIC_ID))
    for each in life.all:
        each.abandon()
    life.open()
    assert life.b.take_futures(KEY, TOPIC_ID)
    assert not life.b.take_futures(KEY, TOPIC_ID)


@pytest.mark.parametrize("seed", range(30))
def test_a_random_life_moves(directories, seed):
    chance = random.Random(seed)
    life = directories()
    future = FutureLog(KEY, life.log, life.b, TOPIC_ID)
    epoch, sequence = 0, 0
    for _ in range(60):
        end = life.log.log_end_offset
        match chance.choice(["append", "append", "append", "copy", "copy", "cut", "start", "roll"]):
            case "append":
                epoch += chance.random() < 0.2
                values = [b"v" * chance.randint(0, 90) for _ in range(chance.randint(1, 4))]
                fields = {"producer_id": 3, "producer_epoch": 0, "base_sequence": sequence}
                append(life.log, batch_of(*values, **fields), epoch)
                sequence += len(values)
            case "copy":
                step = future.next_step(chance.randint(1, 500))
                if step is not None:
                    step.run()
            case "cut" if chance.random() < 0.3:
                life.log.truncate_to(chance.randint(max(0, end - 10), end))
                state = life.log.producers.get(3)
                sequence = state.last_sequence + 1 if state else 0
                epoch += 1
            case "start" if chance.random() < 0.3:
                life.log.high_watermark = end
                life.log.delete_records_before(chance.randint(life.log.log_start_offset, end))
                life.log.apply_retention(START_MS)
            case "roll":
                life.log.roll(START_MS)
    old = life.log
    before, known = content(old), states(old)
    facts = (old.log_start_offset, old.log_end_offset, old.leader_epochs.entries)
    copy(future)
    swap(life, future)
    assert content(life.log) == before
    assert states(life.log) == known
    log = life.log
    assert (log.log_start_offset, log.log_end_offset, log.leader_epochs.entries) == facts


def test_a_copy_in_the_place_of_a_stray_inherits_no_checkpoint(directories):
    life = directories()
    stray = life.b.create(*KEY, CONFIG, topic_id=TopicId(uuid.UUID(int=8)))
    fill(stray)
    stray.high_watermark = 30
    stray.flush()
    life.b.checkpoint()
    FutureLog(KEY, life.log, life.b, TOPIC_ID)
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        assert "t 0" not in (life.b.path / name).read_text()


def test_what_was_prepared_is_durable_and_a_copy_that_was_closed_keeps_no_file_open(directories):
    life = directories()
    fill(life.log)
    future = FutureLog(KEY, life.log, life.b, TOPIC_ID)
    copy(future)
    assert future.log.recovery_point == 0
    future.prepare()()
    future.prepared()
    assert future.log.recovery_point == future.log.log_end_offset == 30
    future.give_up()
    future.close()
    assert future.log.is_abandoned
