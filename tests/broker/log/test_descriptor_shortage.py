"""No file descriptor is left: what needs one happens whole or not at all, and later succeeds.

The shortage is real: the process's limit is lowered to a number of free descriptors, each number
in turn until the operation succeeds.
"""

import errno
import os
import threading
import uuid
from contextlib import contextmanager

import pytest

from headrace_broker.log import descriptor_shortage
from headrace_broker.log.checkpoints import TopicPartition
from headrace_broker.log.compaction import Compaction
from headrace_broker.log.config import LogConfig
from headrace_broker.log.descriptor_shortage import (
    QUIET_SECONDS,
    SPARES,
    OutOfDescriptorsError,
    Shortages,
)
from headrace_broker.log.epoch_cache import LeaderEpochCache
from headrace_broker.log.files import (
    LogDirectoryFailure,
    as_a_whole,
    failing_the_directory,
    open_file,
    replace_file,
    sync_file,
)
from headrace_broker.log.future_log import FutureLog
from headrace_broker.log.log_directories import LogDirectories
from headrace_broker.log.log_directory import LogDirectory
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.log.scrub import ScrubStep
from headrace_broker.log.segments.segment import SEGMENT_SUFFIXES
from headrace_broker.log.segments.transaction_index import AbortedTransaction, TransactionIndex
from headrace_broker.log.validation import AppendOrigin
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.types import TopicId
from support.descriptors import few_descriptors, open_descriptors
from support.log import START_MS, ManualClock, append, batch_of, content, marker, open_at

FREE_MAX = SPARES + 6
SETTINGS = {"segment_bytes": 600, "index_interval_bytes": 0, "file_delete_delay_ms": 0}
KEY = TopicPartition("t", 0)
TOPIC_ID = TopicId(uuid.UUID(int=7))


@contextmanager
def no_descriptor_stays():
    before = open_descriptors(os.getpid())
    yield
    assert open_descriptors(os.getpid()) == before


def filled(folder, **settings):
    """A log with some segments, an aborted transaction and two leader epochs; all files closed."""
    log = PartitionLog.open(folder, LogConfig(**SETTINGS | settings), clock=ManualClock())
    for number in range(20):
        append(log, batch_of(b"%d" % number, key=b"%d" % (number % 3)), epoch=number // 10)
    begun = batch_of(
        b"x", key=b"x", attributes=0x10, producer_id=4, producer_epoch=0, base_sequence=0
    )
    append(log, begun, epoch=1)
    log.append_as_leader(
        marker(4, 0, commit=False), 1, now_ms=START_MS, origin=AppendOrigin.COORDINATOR
    )
    for number in range(10):
        append(log, batch_of(b"later %d" % number, key=b"%d" % (number % 3)), epoch=1)
    log.high_watermark = log.log_end_offset
    assert len(log.segments) > 4
    for segment in log.segments:
        segment.close()
    return log


def files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def state(log):
    return (
        log.log_start_offset,
        log.log_end_offset,
        log.high_watermark,
        log.recovery_point,
        log.cleaner_offset,
        log.leader_epochs.entries,
        [(segment.base_offset, segment.size) for segment in log.segments],
    )


def check_whole(folder):
    """No file of a segment is there without the others, and nothing is left over."""
    names = {path.name for path in folder.iterdir()}
    assert not [name for name in names if name.endswith((".cleaned", ".swap", ".tmp", ".part"))]
    for name in names:
        stem, _, suffix = name.partition(".")
        if f".{suffix}" in SEGMENT_SUFFIXES:
            assert f"{stem}.log" in names, name


def roll(log):
    log.roll(START_MS)


def truncate(log):
    log.truncate_to(7)


def truncate_within_the_last_segment(log):
    log.truncate_to(log.log_end_offset - 1)


def restart(log):
    log.truncate_fully_and_start_at(1000)


def skip(log):
    log.skip_to(1000)


STEPS = [roll, truncate, truncate_within_the_last_segment, restart, skip]


@pytest.mark.parametrize("step", STEPS)
def test_a_step_with_several_files_happens_whole_or_not_at_all(tmp_path, step):
    expected = filled(tmp_path / "expected-0")
    step(expected)
    refused = 0
    for free in range(FREE_MAX):
        folder = tmp_path / f"{free}-0"
        log = filled(folder)
        before = files(folder), state(log)
        try:
            with few_descriptors(free):
                step(log)
        except OutOfDescriptorsError:
            assert (files(folder), state(log)) == before
            refused += 1
            step(log)
        assert state(log) == state(expected)
        assert content(log) == content(expected)
        check_whole(folder)
        log.abandon()
        again = open_at(folder, ManualClock(), **SETTINGS)
        assert content(again) == content(expected)
        if step is not skip:  # after a kill, a log without records at its end is cut there
            assert again.log_end_offset == expected.log_end_offset
        again.abandon()
    expected.abandon()
    assert 0 < refused < FREE_MAX


def test_appends_go_on_in_the_old_segment_until_there_is_a_descriptor(tmp_path):
    log = filled(tmp_path / "t-0")
    log.segments.active.hold_open()
    segments, sent = len(log.segments), [bytes(each) for each in content(log)]
    with few_descriptors(0):
        for number in range(1500):  # more than the buffer of an index
            append(log, batch_of(b"during %d" % number), epoch=2)
        assert len(log.segments) == segments
        with pytest.raises(OutOfDescriptorsError):
            log.flush()
        assert log.read(log.log_end_offset - 1, 100, upper_bound=1 << 40, at_least_one=True)
    append(log, batch_of(b"after"), epoch=2)
    assert len(log.segments) == segments + 1
    assert content(log)[: len(sent)] == sent
    log.flush()
    log.abandon()
    again = open_at(tmp_path / "t-0", ManualClock(), **SETTINGS)
    assert content(again) == content(log)
    assert again.leader_epochs.entries == log.leader_epochs.entries
    again.abandon()
    log.abandon()


def test_an_append_as_a_follower_goes_on_in_the_old_segment(tmp_path):
    source = filled(tmp_path / "source-0")
    log = PartitionLog.open(tmp_path / "t-0", LogConfig(**SETTINGS), clock=ManualClock())
    batches = content(source)
    with few_descriptors(0):
        for batch in batches:
            log.append_as_follower(batch)
    assert len(log.segments) == 1
    assert content(log) == content(source)
    log.flush()
    assert log.leader_epochs.entries == source.leader_epochs.entries
    log.abandon()
    source.abandon()


def test_where_offsets_do_not_fit_an_append_is_refused_with_nothing_done(tmp_path):
    log = filled(tmp_path / "t-0")
    log.segments.active.offset_max = log.log_end_offset - 1
    before = files(tmp_path / "t-0"), state(log)
    with few_descriptors(0), pytest.raises(OutOfDescriptorsError):
        append(log, batch_of(b"x"), epoch=3)
    assert (files(tmp_path / "t-0"), state(log)) == before
    log.abandon()


def test_what_an_aborted_transaction_leaves_is_written_with_the_next_flush(tmp_path):
    folder = tmp_path / "t-0"
    log = PartitionLog.open(folder, LogConfig(), clock=ManualClock())
    append(log, batch_of(b"x", attributes=0x10, producer_id=4, producer_epoch=0, base_sequence=0))
    with few_descriptors(0):
        log.append_as_leader(
            marker(4, 0, commit=False), 0, now_ms=START_MS, origin=AppendOrigin.COORDINATOR
        )
        aborted = log.aborted_transactions(0, 2)
        with pytest.raises(OutOfDescriptorsError):
            log.flush()
    assert len(aborted) == 1
    log.flush()
    found = TransactionIndex(log.segments.active.transaction_index.path)
    assert found.load()
    assert list(found.entries) == aborted
    log.abandon()


def test_an_index_whose_entries_wait_is_truncated_in_memory(tmp_path):
    index = TransactionIndex(tmp_path / "0.txnindex")
    first, second = AbortedTransaction(1, 0, 1, 0), AbortedTransaction(1, 2, 3, 2)
    index.append(first)
    with few_descriptors(0):
        index.append(second)
    index.truncate(3)
    index.write_pending()
    found = TransactionIndex(index.path)
    assert found.load()
    assert found.entries == index.entries == (first,)


def test_a_leader_epoch_is_known_at_once_and_on_disk_before_the_flush(tmp_path):
    folder = tmp_path / "t-0"
    log = PartitionLog.open(folder, LogConfig(), clock=ManualClock())
    with few_descriptors(0):
        log.leader_epochs.assign(5, 0)
        assert log.leader_epochs.latest == 5
        with pytest.raises(OutOfDescriptorsError):
            log.begin_flush()
    log.begin_flush().run()
    assert LeaderEpochCache(folder, lambda: 0).entries == [(5, 0)]
    log.abandon()


def test_reads_are_refused_and_later_answered(tmp_path):
    log = filled(tmp_path / "t-0")
    with few_descriptors(0):
        for look in (
            lambda: log.read(0, 100, upper_bound=5, at_least_one=True),
            lambda: log.fetch_offset_by_timestamp(START_MS),
            log.max_timestamp_offset,
        ):
            with pytest.raises(OutOfDescriptorsError, match="ulimit -n") as caught:
                look()
            assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert caught.value.code.is_retriable
    assert not log.is_damaged
    assert log.read(0, 100, upper_bound=5, at_least_one=True)
    log.abandon()


def test_retention_removes_what_it_can_and_gives_descriptors_back(tmp_path):
    folder = tmp_path / "t-0"
    log = filled(folder, retention_ms=1)
    for segment in log.segments:
        segment.hold_open()
    active = log.segments.active
    with few_descriptors(0):
        assert log.apply_retention(START_MS + 10**6)
    assert list(log.segments) == [active]
    assert log.apply_retention(START_MS + 10**6) == active.size
    assert log.log_start_offset == log.log_end_offset
    log.removal.run_all()
    check_whole(folder)
    log.flush()
    log.abandon()
    again = open_at(folder, ManualClock(), **SETTINGS)
    assert again.log_start_offset == log.log_end_offset
    again.abandon()


def test_a_flush_that_lacks_a_descriptor_moves_nothing_and_is_repeated(tmp_path):
    refused = 0
    for free in range(FREE_MAX):
        log = filled(tmp_path / f"{free}-0")
        try:
            with few_descriptors(free):
                log.flush()
        except OutOfDescriptorsError:
            refused += 1
            assert log.recovery_point == 0
            log.flush()
        assert log.recovery_point == log.log_end_offset
        log.abandon()
    assert 0 < refused < FREE_MAX


def test_compaction_is_put_off_with_nothing_left_behind(tmp_path):
    settings = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.0}

    def compact(log):
        compaction = Compaction.begin(log, START_MS)
        assert compaction is not None
        compaction.run()
        return compaction

    expected = filled(tmp_path / "expected-0", **settings)
    assert compact(expected).finish()
    for part in ("run", "finish"):
        refused = 0
        for free in range(FREE_MAX):
            folder = tmp_path / f"{part}{free}-0"
            log = filled(folder, **settings)
            for segment in log.segments:
                if part == "finish":
                    segment.hold_open()
            before = files(folder), state(log)
            try:
                if part == "run":
                    with few_descriptors(free):
                        begun = compact(log)
                    begun.finish()
                else:
                    begun = compact(log)
                    for cleaned in begun._made:
                        cleaned.close()
                    with few_descriptors(free):
                        begun.finish()
            except OutOfDescriptorsError:
                refused += 1
                assert (files(folder), state(log)) == before
                assert compact(log).finish()
            log.removal.run_all()
            check_whole(folder)
            assert content(log) == content(expected)
            log.abandon()
        assert 0 < refused < FREE_MAX, part
    expected.abandon()


def test_a_compaction_that_is_not_used_leaves_no_descriptor(tmp_path):
    log = filled(tmp_path / "t-0", cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    for segment in log.segments:
        segment.hold_open()
    with no_descriptor_stays():
        compaction = Compaction.begin(log, START_MS)
        compaction.run()
        log.is_being_copied = True
        assert not compaction.finish()
    check_whole(tmp_path / "t-0")
    log.abandon()


def test_a_check_for_damage_finds_none(tmp_path):
    log = filled(tmp_path / "t-0")
    step = ScrubStep.begin(log, log.segments.first, 0, 0)
    with few_descriptors(0), pytest.raises(OutOfDescriptorsError):
        step.run()
    refused = 0
    for free in range(FREE_MAX):
        for segment in log.segments:
            segment.close()
        try:
            with few_descriptors(free):
                log.look_for_damage(log.segments.first, 0)
        except OutOfDescriptorsError:
            refused += 1
        assert log.segments.first.offset_index.path.suffix == ".index"
        assert len(content(log)) == 32
    assert 0 < refused < FREE_MAX
    assert not log.is_damaged
    log.abandon()


@pytest.mark.parametrize("was_clean", [True, False])
def test_a_log_that_cannot_be_opened_is_opened_later(tmp_path, was_clean):
    log = filled(tmp_path / "t-0")
    expected = content(log)
    log.close() if was_clean else log.abandon()
    refused = 0
    for free in range(FREE_MAX):
        with no_descriptor_stays():
            point = log.log_end_offset if was_clean else 0
            opening = {"recovery_point": point, "was_clean": was_clean, "clock": ManualClock()}
            try:
                with few_descriptors(free):
                    again = PartitionLog.open(tmp_path / "t-0", LogConfig(**SETTINGS), **opening)
            except OutOfDescriptorsError:
                refused += 1
                again = PartitionLog.open(tmp_path / "t-0", LogConfig(**SETTINGS), **opening)
            assert content(again) == expected
            assert again.leader_epochs.entries == log.leader_epochs.entries
            assert not again.is_damaged
            again.abandon()
    assert 0 < refused < FREE_MAX


# ---- log directories


def open_directory(path):
    return LogDirectory.open(path, node_id=1, cluster_id="c", clock=ManualClock())


def test_a_partition_is_created_whole_or_not_at_all(tmp_path):
    directory = open_directory(tmp_path)
    config = LogConfig(**SETTINGS)
    refused = 0
    for free in range(FREE_MAX):
        with no_descriptor_stays():
            try:
                with few_descriptors(free):
                    log = directory.create("t", free, config, topic_id=TOPIC_ID)
            except OutOfDescriptorsError:
                refused += 1
                assert not (tmp_path / f"t-{free}").exists()
                assert TopicPartition("t", free) not in directory.logs
                log = directory.create("t", free, config, topic_id=TOPIC_ID)
            assert directory.topic_id("t", free) == TOPIC_ID
            log.abandon()
    assert 0 < refused < FREE_MAX
    directory.abandon()


@pytest.mark.parametrize("is_clean", [True, False])
def test_an_existing_partition_is_opened_as_soon_as_there_is_a_descriptor(tmp_path, is_clean):
    config = LogConfig(**SETTINGS)
    directory = open_directory(tmp_path)
    log = directory.create(*KEY, config, topic_id=TOPIC_ID)
    for number in range(50):
        append(log, batch_of(b"%d" % number))
    log.high_watermark = log.log_end_offset
    directory.checkpoint()
    expected = content(log)
    refused = 0
    for free in range(FREE_MAX):
        directory.close() if is_clean else directory.abandon()
        directory = open_directory(tmp_path)

        def open_log(found=directory):
            recovery = found.recovery(*KEY, config)
            assert (recovery is None) == is_clean
            recovered = None if recovery is None else recovery()
            return found.create(*KEY, config, topic_id=TOPIC_ID, recovered=recovered)

        with no_descriptor_stays():
            try:
                with few_descriptors(free):
                    log = open_log()
            except OutOfDescriptorsError:
                refused += 1
                log = open_log()
            assert content(log) == expected
            assert log.high_watermark == len(expected)
            for segment in log.segments:
                segment.close()
    assert 0 < refused < FREE_MAX
    directory.abandon()


def test_checkpoints_are_written_in_the_next_round(tmp_path):
    directory = open_directory(tmp_path)
    log = directory.create(*KEY, LogConfig(), topic_id=TOPIC_ID)
    append(log, batch_of(b"x"))
    log.high_watermark = 1
    with few_descriptors(0):
        for write in (directory.checkpoint_high_watermarks, directory.checkpoint):
            with pytest.raises(OutOfDescriptorsError):
                write()
    directory.checkpoint_high_watermarks()
    directory.abandon()
    directory = open_directory(tmp_path)
    assert directory.high_watermark(*KEY) == 1
    directory.abandon()


def test_checkpoints_are_lowered_on_disk_before_records_are_replaced(tmp_path):
    directory = open_directory(tmp_path)
    log = directory.create(*KEY, LogConfig(), topic_id=TOPIC_ID)
    for _ in range(5):
        append(log, batch_of(b"x"))
    log.high_watermark = 5
    log.flush()
    directory.checkpoint()
    with few_descriptors(0), pytest.raises(OutOfDescriptorsError):
        log.truncate_to(2)
    log.truncate_to(2)
    directory.abandon()
    directory = open_directory(tmp_path)
    assert directory.high_watermark(*KEY) == 2
    directory.abandon()


def test_a_deleted_partition_is_gone_even_without_a_descriptor(tmp_path):
    directory = open_directory(tmp_path)
    directory.create(*KEY, LogConfig(), topic_id=TOPIC_ID)
    for segment in directory.logs[KEY].segments:
        segment.close()
    with few_descriptors(0), pytest.raises(OutOfDescriptorsError):
        directory.delete(*KEY)
    assert not directory.has_folder(*KEY)
    assert KEY not in directory.logs
    with few_descriptors(0), pytest.raises(OutOfDescriptorsError):
        directory.remove_deleted()
    assert directory.remove_deleted() == 1
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
    directory.abandon()


def test_a_start_without_descriptors_is_refused_and_no_directory_counts_as_failed(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]

    def open_all():
        return LogDirectories.open(paths, paths[0], node_id=1, cluster_id="", clock=ManualClock())

    directories = open_all()
    known, ids = directories.cluster_id, [each.directory_id for each in directories]
    directories.close(broker_epoch=7)
    refused = 0
    for free in range(FREE_MAX):
        with no_descriptor_stays():
            try:
                with few_descriptors(free):
                    directories = open_all()
            except OutOfDescriptorsError:
                refused += 1
                directories = open_all()
            assert directories.cluster_id == known
            assert [each.directory_id for each in directories] == ids
            assert not directories.failed
            directories.close(broker_epoch=7)
    assert 0 < refused < FREE_MAX


def test_a_directory_that_cannot_be_closed_is_recovered_by_the_next_start(tmp_path):
    def open_all():
        return LogDirectories.open(
            [tmp_path], tmp_path, node_id=1, cluster_id="", clock=ManualClock()
        )

    directories = open_all()
    (directory,) = directories
    log = directory.create(*KEY, LogConfig(), topic_id=TOPIC_ID)
    append(log, batch_of(b"x"))
    with few_descriptors(0):
        directories.close(broker_epoch=7)
    assert not directories.failed
    directories = open_all()
    assert not directories.was_clean
    directories.close(broker_epoch=8)


def test_a_move_to_another_directory_waits(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    for free in range(FREE_MAX):
        key = TopicPartition("t", free)
        directories = LogDirectories.open(
            paths, paths[0], node_id=1, cluster_id="", clock=ManualClock()
        )
        source, target = directories
        log = source.create(*key, LogConfig(**SETTINGS), topic_id=TOPIC_ID)
        for number in range(50):
            append(log, batch_of(b"%d" % number))
        log.high_watermark = log.log_end_offset
        expected = content(log)
        for segment in log.segments:
            segment.close()

        def limited(work, free=free):
            try:
                with few_descriptors(free):
                    return work()
            except OutOfDescriptorsError:
                return work()

        future = limited(lambda key=key, log=log, b=target: FutureLog(key, log, b, TOPIC_ID))
        while (step := limited(lambda future=future: future.next_step(300))) is not None:
            limited(step.run)

        def prepare(future=future):
            future.prepare()()
            future.prepared()

        limited(prepare)
        moved = limited(lambda future=future: future.swap(needs_flush=True))
        assert content(moved) == expected
        assert moved.high_watermark == len(expected)
        future.remove_source(source)
        assert [each.has_folder(*key) for each in (source, target)] == [False, True]
        assert not [path for path in paths[1].iterdir() if path.name.endswith("-future")]
        directories.close(broker_epoch=1)


# ---- the parts


def test_a_file_is_replaced_durably_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    for free in range(2):
        with few_descriptors(free), pytest.raises(OutOfDescriptorsError):
            replace_file(path, b"new")
        assert files(tmp_path) == {"file": b"old"}
    with few_descriptors(2):
        replace_file(path, b"new")
    assert files(tmp_path) == {"file": b"new"}


def test_a_shortage_of_the_process_or_the_machine_is_none_of_the_disk(tmp_path):
    for code in (errno.EMFILE, errno.ENFILE):
        with pytest.raises(OutOfDescriptorsError), failing_the_directory(tmp_path):
            raise OSError(code, os.strerror(code))
    with pytest.raises(LogDirectoryFailure), failing_the_directory(tmp_path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_step_fails_its_directory_where_other_threads_took_its_spares(tmp_path, monkeypatch):
    monkeypatch.setattr(descriptor_shortage, "SPARES", 0)
    (tmp_path / "file").touch()
    with few_descriptors(0), pytest.raises(LogDirectoryFailure), as_a_whole(tmp_path):
        sync_file(tmp_path / "file")


def test_the_spare_descriptors_of_a_step_serve_all_its_parts(tmp_path):
    with few_descriptors(SPARES), as_a_whole(tmp_path), as_a_whole(tmp_path):
        held = [
            open_file(tmp_path / str(number), os.O_CREAT | os.O_RDWR)
            for number in range(SPARES - 1)
        ]
        for _ in range(5):
            sync_file(tmp_path / "0")
    for descriptor in held:
        os.close(descriptor)
    with few_descriptors(SPARES - 1), pytest.raises(OutOfDescriptorsError), as_a_whole(tmp_path):
        pytest.fail("one is missing")


def test_a_step_waits_for_the_spares_that_other_threads_took(tmp_path):
    (tmp_path / "file").touch()
    with few_descriptors(SPARES), as_a_whole(tmp_path):
        descriptor_shortage._held.spares[:], held = [], list(descriptor_shortage._held.spares)
        thief = threading.Timer(0.05, os.close, held[:1])
        thief.start()
        sync_file(tmp_path / "file")
        thief.join()
        for spare in held[1:]:
            os.close(spare)


def test_a_shortage_is_logged_once_at_its_beginning_and_at_its_end(capfd):
    shortages = Shortages()
    for _ in range(100):
        shortages.note("/some/file")
    shortages.look(0.0)
    shortages.look(QUIET_SECONDS)
    shortages.note("/some/file")
    shortages.look(QUIET_SECONDS + 1)
    assert capfd.readouterr().out.count("file descriptors run out") == 1
    shortages.look(2 * QUIET_SECONDS + 2)
    shortages.look(3 * QUIET_SECONDS + 3)
    assert capfd.readouterr().out.count("file descriptors are enough again") == 1
    shortages.note("/some/file")
    shown = capfd.readouterr().out
    assert "ulimit -n" in shown
    assert "LimitNOFILE" in shown
    assert shortages.count == 102
