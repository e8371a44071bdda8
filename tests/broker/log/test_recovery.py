"""What a kill leaves, and what opening makes of it."""

import errno
import os
import shutil
import threading

import pytest

from headrace_broker.log.batches import iterate_headers
from headrace_broker.log.config import LogConfig
from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.log.segments.sparse_index import OFFSET_ENTRY, TIME_ENTRY, SparseIndex
from headrace_broker.log.segments.time_lookup import max_timestamp_record
from support.log import START_MS, append, batch_of, content, open_at, write_epoch

SETTINGS = {"segment_bytes": 700, "index_interval_bytes": 1}


def filled(new_log, batches=10, **settings):
    log = new_log(**(SETTINGS | settings))
    for number in range(batches):
        append(log, batch_of(b"x" * 100, base_timestamp=START_MS + number))
    return log


def test_a_torn_tail_is_cut_at_the_last_whole_batch_wherever_it_was_torn(new_log, tmp_path, clock):
    log = new_log(**SETTINGS)
    for _ in range(3):
        append(log, batch_of(b"x" * 20))
    log.begin_flush()
    whole = content(log)
    ends = [sum(map(len, whole[: count + 1])) for count in range(3)]
    log.abandon()
    for cut in range(ends[-1] + 1):
        folder = tmp_path / f"cut-{cut}"
        shutil.copytree(log.directory, folder)
        os.truncate(folder / "00000000000000000000.log", cut)
        again = open_at(folder, clock, **SETTINGS)
        assert content(again) == [
            batch for batch, end in zip(whole, ends, strict=True) if end <= cut
        ]
        append(again, batch_of(b"next"))
        assert content(again)[-1][:8] == (again.log_end_offset - 1).to_bytes(8, "big")
        again.abandon()
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    "garbage",
    [b"\x00" * 4096, b"\xff" * 500, b"\x00" * 7, os.urandom(300), bytes(batch_of(b"a", crc=5))],
    ids=["zeros of a preallocated file", "ones", "partial header", "noise", "wrong checksum"],
)
def test_garbage_at_the_end_is_cut(new_log, folder, clock, garbage):
    log = filled(new_log)
    whole = content(log)
    log.abandon()
    with log.segments.active.path.open("ab") as file:
        file.write(garbage)
    again = open_at(folder, clock, **SETTINGS)
    assert content(again) == whole
    again.abandon()


def test_a_batch_that_goes_on_above_the_recovery_point_is_checked(new_log, folder, clock):
    log = new_log(index_interval_bytes=1)
    append(log, batch_of(b"whole"))
    append(log, batch_of(b"first", b"second", b"third"))
    log.begin_flush()
    log.abandon()
    path = log.segments.first.path
    path.write_bytes(path.read_bytes().replace(b"third", b"th\0rd"))
    again = PartitionLog.open(
        folder,
        LogConfig(index_interval_bytes=1),
        clock=clock,
        recovery_point=3,
        was_clean=False,
    )
    assert again.log_end_offset == 1
    again.abandon()


def test_segments_after_a_torn_one_are_removed(new_log, folder, clock):
    log = filled(new_log)
    whole = content(log)
    first = log.segments.first
    kept = len([1 for segment in log.segments for _ in segment.headers(0) if segment is first])
    log.abandon()
    with first.path.open("r+b") as file:
        file.seek(first.size - 5)
        file.write(b"!!!!!")
    again = open_at(folder, clock, **SETTINGS)
    assert content(again) == whole[: kept - 1]
    assert len(list(folder.glob("*.log"))) == 1
    again.abandon()


def test_segments_after_one_that_lost_whole_batches_are_removed(new_log, folder, clock):
    log = filled(new_log)
    whole = content(log)
    first, second = list(log.segments)[:2]
    kept = [batch for batch in whole if int.from_bytes(batch[:8]) < second.base_offset][:-1]
    log.abandon()
    os.truncate(first.path, sum(map(len, kept)))
    # What compaction made may have holes.
    shutil.copytree(folder, folder.with_name("compacted-0"))
    compacted = open_at(
        folder.with_name("compacted-0"), clock, **SETTINGS, cleanup_policy="compact"
    )
    assert content(compacted)[len(kept) :] == whole[len(kept) + 1 :]
    compacted.abandon()
    again = open_at(folder, clock, **SETTINGS)
    assert content(again) == kept
    assert again.log_end_offset == len(kept)
    again.abandon()


@pytest.mark.parametrize("left", [b"", b"\0" * 100, b"torn"], ids=["nothing", "zeros", "a part"])
def test_a_compacted_log_ends_with_a_batch_or_where_one_ends(new_log, folder, clock, left):
    """A follower fetches batches: it could never come to an end that lies behind a hole."""
    log = filled(new_log)
    *_, before, last = log.segments
    kept = [batch for batch in content(log) if int.from_bytes(batch[:8]) < before.base_offset]
    log.abandon()
    os.truncate(before.path, 0)
    last.path.write_bytes(left)
    again = open_at(folder, clock, **SETTINGS, cleanup_policy="compact")
    assert content(again) == kept
    assert again.log_end_offset == before.base_offset
    assert len(list(folder.glob("*.log"))) == len(list(again.segments))
    again.abandon()


def test_only_what_lies_after_the_recovery_point_is_read(new_log, folder, clock, monkeypatch):
    log = new_log(segment_bytes=1 << 20)
    for _ in range(500):
        append(log, batch_of(b"x" * 16_000))
    recovery_point = log.flush()
    for _ in range(5):
        append(log, batch_of(b"x" * 16_000))
    log.abandon()
    size = log.size_bytes
    read_bytes = [0]
    real = os.pread

    def counting(fd, count, position):
        data = real(fd, count, position)
        read_bytes[0] += len(data)
        return data

    monkeypatch.setattr(os, "pread", counting)
    config = LogConfig(segment_bytes=1 << 20)
    killed = PartitionLog.open(
        folder, config, clock=clock, recovery_point=recovery_point, was_clean=False
    )
    assert killed.log_end_offset == 505
    assert read_bytes[0] < size / 20
    killed.close()
    read_bytes[0] = 0
    clean = PartitionLog.open(folder, config, clock=clock, recovery_point=505)
    assert clean.log_end_offset == 505
    assert read_bytes[0] < 16_384, "a clean start reads index ends and a few headers"
    clean.abandon()


@pytest.mark.parametrize("damage", ["missing", "odd size", "beyond the log"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("was_clean", [True, False])
def test_damaged_indexes_are_built_again(new_log, folder, clock, damage, suffix, was_clean):
    log = filled(new_log)
    whole = content(log)
    log.close()
    index = folder / f"{0:020d}{suffix}"
    before = index.read_bytes()
    if damage == "missing":
        index.unlink()
    elif damage == "odd size":
        index.write_bytes(before + b"\x00\x01\x02")
    elif suffix == ".index":
        index.write_bytes(before + b"\x00\x00\x00\x7f\x7f\x00\x00\x00")
    again = PartitionLog.open(folder, LogConfig(**SETTINGS), clock=clock, was_clean=was_clean)
    assert content(again) == whole
    assert index.read_bytes() == before
    again.abandon()


@pytest.mark.parametrize("torn", [(0, 16), (1, 17)], ids=["out of order", "no batch there"])
def test_an_index_whose_end_a_power_cut_tore_is_built_again(new_log, folder, clock, torn):
    """Its last entry may look like one; a search would begin in the middle of a batch."""
    log = filled(new_log, segment_bytes=1 << 20)
    whole = content(log)
    log.close()
    index = folder / f"{0:020d}.index"
    before = index.read_bytes()
    kept = before[: OFFSET_ENTRY.size] if torn[0] else before
    index.write_bytes(kept + OFFSET_ENTRY.pack(*torn))
    config = LogConfig(**SETTINGS | {"segment_bytes": 1 << 20})
    again = PartitionLog.open(folder, config, clock=clock, was_clean=False, recovery_point=4)
    assert content(again) == whole
    assert index.read_bytes() == before
    again.abandon()


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_the_first_entry_above_the_recovery_point_may_be_torn(new_log, folder, clock, suffix):
    """Without its last byte it names an earlier place, or an earlier offset, than its own."""
    settings = SETTINGS | {"segment_bytes": 1 << 20}
    log = filled(new_log, **settings)
    whole = content(log)
    log.close()
    paths = [folder / f"{0:020d}{each}" for each in (".index", ".timeindex")]
    entries = [OFFSET_ENTRY, TIME_ENTRY]
    before = [
        list(entry.iter_unpack(path.read_bytes()))
        for entry, path in zip(entries, paths, strict=True)
    ]
    if suffix == ".index":
        durable = [each for each in before[0] if each[0] < 4]
        torn = (4, dict(before[0])[4] - 1)
    else:
        durable = [each for each in before[1] if each[1] < 4]
        torn = (START_MS + 20, 3)
    which = (".index", ".timeindex").index(suffix)
    paths[which].write_bytes(b"".join(entries[which].pack(*each) for each in [*durable, torn]))
    again = PartitionLog.open(
        folder, LogConfig(**settings), clock=clock, was_clean=False, recovery_point=4
    )
    assert content(again) == whole
    for entry, path, whole_index in zip(entries, paths, before, strict=True):
        assert set(entry.iter_unpack(path.read_bytes())) <= set(whole_index)
    newest = max_timestamp_record(again.segments, 0)
    assert (newest.offset, newest.timestamp) == (9, START_MS + 9)
    again.abandon()


def test_a_crash_while_an_index_is_built_again_leaves_the_former_one_in_its_place(
    new_log, folder, clock, monkeypatch
):
    """Torn by a power cut, entries below the recovery point would be taken on trust."""
    log = filled(new_log)
    whole = content(log)
    log.close()
    index, times = (folder / f"{0:020d}{suffix}" for suffix in (".index", ".timeindex"))
    before = index.read_bytes()
    times.write_bytes(times.read_bytes() + b"\0")

    def crash(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SparseIndex, "finish_rebuild", crash)
        with pytest.raises(KeyboardInterrupt):
            open_at(folder, clock, **SETTINGS)
    assert index.read_bytes() == before
    again = open_at(folder, clock, **SETTINGS)
    assert content(again) == whole
    assert index.read_bytes() == before
    assert not list(folder.glob("*.tmp"))
    again.abandon()


def test_leader_epochs_of_recovered_batches_are_known_again(new_log, folder, clock):
    log = new_log()
    append(log, batch_of(b"a"), epoch=1)
    append(log, batch_of(b"b"), epoch=3)
    entries = log.leader_epochs.entries
    log.abandon()
    (folder / "leader-epoch-checkpoint").unlink()
    again = open_at(folder, clock)
    assert again.leader_epochs.entries == entries
    again.abandon()


@pytest.mark.parametrize("start", [1, 3, 4, 5, 6, 8, 12])
@pytest.mark.parametrize(("former_start", "first"), [(0, 0), (1, 1), (3, 3)])
def test_leader_epochs_are_known_from_a_log_start_that_a_kill_brought_back(
    new_log, folder, clock, start, former_start, first
):
    """A kill may keep the epochs' file and lose the log start that shortened it."""
    log = new_log(**SETTINGS)
    for epoch in (1, 1, 3, 3, 6, 6):
        append(log, batch_of(b"x" * 80, b"y"), epoch=epoch)
    recovery_point = log.flush()
    log.delete_records_before(former_start)
    entries = log.leader_epochs.entries
    log.delete_records_before(max(start, former_start))
    if start == log.log_end_offset:
        log.truncate_to(start)  # drops an epoch that has no records, as a follower does
    log.abandon()
    again = PartitionLog.open(
        folder,
        LogConfig(**SETTINGS),
        clock=clock,
        recovery_point=recovery_point,
        was_clean=False,
        log_start_offset=former_start,
    )
    assert again.leader_epochs.entries == entries == [(1, first), (3, 4), (6, 8)]
    again.abandon()


def test_truncation_cuts_whole_batches_and_forgets_what_they_said(new_log):
    log = new_log(**SETTINGS)
    for number in range(12):
        append(
            log,
            batch_of(b"x" * 80, b"y", producer_id=1, producer_epoch=0, base_sequence=number * 2),
            epoch=number // 4,
        )
    before = content(log)
    log.truncate_to(13)
    assert log.log_end_offset == 12, "a batch is cut as a whole"
    assert content(log) == before[:6]
    assert log.producers.get(1).last_sequence == 11
    assert log.leader_epochs.entries == [(0, 0), (1, 8)]
    log.truncate_to(100)
    append(log, batch_of(b"new"), epoch=5)
    assert log.leader_epochs.end_offset_for(1) == (1, 12)
    assert log.leader_epochs.end_offset_for(4) == (1, 12)
    assert log.leader_epochs.end_offset_for(5) == (5, 13)
    assert log.leader_epochs.end_offset_for(6) == (-1, -1)
    assert log.leader_epochs.epoch_for_offset(9) == 1
    log.truncate_fully_and_start_at(1000)
    assert (log.log_start_offset, log.log_end_offset) == (1000, 1000)
    assert append(log, batch_of(b"later")).first_offset == 1000
    assert len(log.producers) == 0


@pytest.mark.parametrize("offset", [13, 25], ids=["within a batch", "in a hole"])
def test_a_truncated_log_ends_where_what_is_left_ends(new_log, tmp_path, folder, clock, offset):
    """Otherwise a clean start would find records missing, and the leader's batch not follow."""
    log, leader = new_log(), PartitionLog.open(tmp_path / "leader", LogConfig(), clock=clock)
    for number in [*range(10), 15, 16]:
        batch = batch_of(b"x", b"y", base_offset=2 * number)
        for each in (log, leader):
            each.append_as_follower(bytearray(batch))
    log.truncate_to(offset)
    end = 12 if offset == 13 else 20
    assert log.log_end_offset == end
    log.close()
    again = PartitionLog.open(folder, LogConfig(), clock=clock, recovery_point=end)
    assert not again.is_damaged
    assert again.log_end_offset == end
    again.append_as_follower(leader.read(end, 1000, upper_bound=34, at_least_one=True))
    assert content(again) == content(leader)
    again.abandon()
    leader.abandon()


def test_damage_where_a_log_is_cut_is_found_and_ends_nothing(new_log):
    log = filled(new_log, index_interval_bytes=0)
    segment = log.segments.active
    end = log.log_end_offset
    with segment.path.open("r+b") as file:  # a length that leads to nowhere
        file.seek(segment.offset_index.last[1] + 8)
        file.write(b"\xff\xff")
    log.truncate_to(end - 1)
    assert log.log_end_offset < end


def test_a_half_finished_swap_is_finished_and_other_leftovers_go(new_log, folder, clock):
    log = filled(new_log)
    whole = content(log)
    log.close()
    for name in ("1.log.cleaned", "2.index.swap", "3.log.deleted", "4.snapshot.tmp"):
        (folder / (("0" * 19) + name)).write_bytes(b"left over")
    base = log.segments.first.base_offset
    for suffix in (".log", ".index", ".timeindex"):
        old = folder / f"{base:020d}{suffix}"
        shutil.copy(old, folder / (old.name + ".swap"))
        old.write_bytes(b"half removed")
    again = open_at(folder, clock, **SETTINGS)
    assert content(again) == whole
    suffixes = {path.suffix for path in folder.iterdir()}
    assert suffixes <= {".log", ".index", ".timeindex", ".snapshot", ""}
    assert next(iterate_headers(whole[0]))[1].base_offset == 0
    again.abandon()


def test_a_torn_batch_right_at_the_recovery_point_is_cut(new_log, folder, clock):
    log = new_log(index_interval_bytes=0)
    append(log, batch_of(b""))
    recovery_point = log.flush()
    whole = log.size_bytes
    append(log, batch_of(b""))
    log.abandon()
    for cut in range(whole + 1, 2 * whole):
        os.truncate(log.segments.active.path, whole)
        os.truncate(log.segments.active.path, cut)
        again = PartitionLog.open(
            folder, LogConfig(), clock=clock, recovery_point=recovery_point, was_clean=False
        )
        assert again.size_bytes == whole
        again.abandon()


def test_a_recovery_point_within_a_batch_cuts_nothing(new_log, folder, clock):
    log = new_log()
    append(log, batch_of(b"a"))
    append(log, batch_of(*[b"b"] * 5))
    log.close()
    # As after a truncation whose new content has other batches than the checkpoint knew.
    again = PartitionLog.open(folder, LogConfig(), clock=clock, recovery_point=3, was_clean=False)
    assert again.log_end_offset == 6
    again.abandon()


def test_a_start_leaves_the_next_index_entry_where_it_would_have_been(folder, clock):
    config = LogConfig(index_interval_bytes=300)
    entries = []
    for restarts in (False, True):
        log = PartitionLog.open(folder.parent / f"{restarts}-0", config, clock=clock)
        for number in range(20):
            append(log, batch_of(b"%02d" % number * (5 + number)))
            if restarts:
                log.close()
                log = PartitionLog.open(
                    log.directory, config, clock=clock, recovery_point=number + 1
                )
        log.close()
        entries.append(log.segments.active.offset_index.path.read_bytes())
    assert entries[0] == entries[1]
    assert entries[0]


def test_an_fsync_beside_one_that_fails_makes_nothing_durable(new_log, monkeypatch):
    """The kernel says once that it has lost data; who asks again hears of a success."""
    log = new_log()
    append(log, batch_of(b"lost"))
    flushes = [log.begin_flush(), log.begin_flush()]
    is_under_way, may_end, calls = threading.Event(), threading.Event(), []

    def fsync(_fd):
        calls.append(1)
        if len(calls) == 1:
            is_under_way.set()
            may_end.wait(10)
            raise OSError(errno.EIO, "lost")

    monkeypatch.setattr(os, "fsync", fsync)
    heard = []

    def run(flush):
        try:
            flush.run()
        except LogDirectoryFailure as failure:
            heard.append(failure)
        else:
            log.finish_flush(flush)

    threads = [threading.Thread(target=run, args=(flush,)) for flush in flushes]
    threads[0].start()
    assert is_under_way.wait(10)
    threads[1].start()
    may_end.set()
    for thread in threads:
        thread.join(10)
    assert len(heard) == 2
    assert log.recovery_point == 0
    with pytest.raises(LogDirectoryFailure, match="lost"):
        log.flush()
    log.abandon()


@pytest.mark.parametrize("recovery_point", [0, 2])
@pytest.mark.parametrize(
    ("false", "offset"),
    [
        pytest.param(16, 3, id="too high"),
        pytest.param(16, 6, id="too high in the second epoch"),
        pytest.param(0, 6, id="too low"),
        pytest.param(1, 5, id="too low where an epoch begins"),
    ],
)
def test_a_log_is_cut_at_a_leader_epoch_that_the_disk_changed(
    new_log, clock, recovery_point, false, offset
):
    log = new_log(**SETTINGS)
    for number in range(10):
        append(log, batch_of(b"x" * 100), epoch=2 if number < 5 else 3)
    whole, entries = content(log), log.leader_epochs.entries
    assert len(log.segments) > 2
    log.flush()
    log.abandon()
    write_epoch(log, offset, false)
    again = PartitionLog.open(
        log.directory,
        LogConfig(**SETTINGS),
        clock=clock,
        was_clean=False,
        recovery_point=recovery_point,
    )
    assert content(again) == whole[:offset]
    assert again.log_end_offset == offset
    assert again.leader_epochs.entries == [entry for entry in entries if entry[1] < offset]
    again.abandon()


def test_an_epoch_that_nobody_noted_is_false_where_the_next_batch_has_a_lower_one(
    new_log, folder, clock
):
    """What no fsync covered may be gone, the epochs' file included."""
    log = new_log()
    for _ in range(4):
        append(log, batch_of(b"v"))
    whole = content(log)
    log.abandon()
    (folder / "leader-epoch-checkpoint").unlink()
    write_epoch(log, 1, 16)
    again = open_at(folder, clock)
    assert content(again) == whole[:1]
    assert again.leader_epochs.entries == [(0, 0)]
    again.abandon()
