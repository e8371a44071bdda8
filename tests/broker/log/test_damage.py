"""Damage in what was durable: found, never served, read around, cut and replicated again."""

import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from headrace_broker.log.batches import iterate_headers
from headrace_broker.log.compaction import Compaction
from headrace_broker.log.config import LogConfig
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.log.scrub import ScrubStep
from headrace_broker.protocol.batch_header import LEADER_EPOCH_POSITION
from headrace_broker.protocol.errors import ApiError, ErrorCode
from support.log import START_MS, ManualClock, append, batch_of, content

_BATCHES = 60
_SETTINGS = {"segment_bytes": 2000, "index_interval_bytes": 300}
_PAGE = 512


class Closed:
    """A log of several segments and leader epochs that was stopped cleanly."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.directory = directory
        self.settings = _SETTINGS | settings
        log = PartitionLog.open(directory, LogConfig(**self.settings), clock=ManualClock())
        for number in range(_BATCHES):
            values = [b"%05d" % number + b"v" * (number % 40)] * (1 + number % 3)
            append(log, batch_of(*values, key=b"k%d" % (number % 7)), epoch=number // 20)
        log.high_watermark = log.log_end_offset
        self.batches = content(log)
        self.end = log.log_end_offset
        log.close()

    def open(self) -> PartitionLog:
        log = PartitionLog.open(
            self.directory,
            LogConfig(**self.settings),
            clock=ManualClock(),
            recovery_point=self.end,
        )
        log.high_watermark = log.log_end_offset
        return log

    def files(self, suffix: str) -> list[Path]:
        return sorted(self.directory.glob(f"*{suffix}"))


def _change(path: Path, position: int, bit: int = 0, zeros: int = 0) -> None:
    data = bytearray(path.read_bytes())
    if zeros:
        data[position : position + zeros] = bytes(len(data[position : position + zeros]))
    else:
        data[position] ^= 1 << bit
    path.write_bytes(data)


def _read_around(log: PartitionLog, max_bytes: int) -> dict[int, bytes]:
    """Every batch that is served, by its offset; an offset that is refused is passed over."""
    offset, found = int(log.log_start_offset), {}
    while offset < log.log_end_offset:
        try:
            data = log.read(offset, max_bytes, upper_bound=log.log_end_offset, at_least_one=True)
        except ApiError as error:
            if error.code is not ErrorCode.CORRUPT_MESSAGE:
                raise
            offset += 1
            continue
        assert data, offset
        for at, header in iterate_headers(data):
            found[header.base_offset] = bytes(data[at : at + header.size_bytes])
            offset = header.last_offset + 1
    return found


def _scrub(log: PartitionLog) -> int:
    found = 0
    for segment in list(log.segments):
        position, offset = 0, segment.base_offset
        while position < segment.size:
            step = ScrubStep.begin(log, segment, position, offset)
            step.run()
            new = step.finish()
            assert new is not None
            found += new
            position, offset = step.position, step.next_offset
    return found


def _check_refused(log: PartitionLog, closed: Closed, served: dict[int, bytes]) -> int:
    """Whether all that is missing is known to be damaged, and nothing else; return how many."""
    missing = 0
    for batch in closed.batches:
        _, header = next(iterate_headers(batch))
        if header.base_offset in served:
            assert served[header.base_offset] == batch
        else:
            missing += 1
            assert any(
                each.first_offset <= header.base_offset and header.last_offset < each.next_offset
                for each in log.damages
            ), (header, log.damages)
    assert len(served) + missing == len(closed.batches)
    return missing


# Positions in the first batch of a segment: its offset, length, leader epoch, magic, CRC, a record.
_FIELDS = (7, 11, 15, 16, 20, 30, 70)


@given(
    file=st.integers(0, 100),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
    zeros=st.sampled_from((0, 0, 0, 20, _PAGE)),
    max_bytes=st.sampled_from((1, 500, 1 << 20)),
    scrubs=st.booleans(),
)
@example(file=100, place=0.99, bit=0, zeros=_PAGE, max_bytes=1, scrubs=False)
@example(file=0, place=0.0, bit=0, zeros=_PAGE, max_bytes=1 << 20, scrubs=True)
# Into the next batch's offset, which is zero then, and that of the batch before.
@example(file=0, place=0.033203125, bit=0, zeros=20, max_bytes=1, scrubs=False)
# Of the last batch that the index names the offset alone is zero, and no checksum covers it.
@example(file=3, place=0.56640625, bit=0, zeros=_PAGE, max_bytes=1, scrubs=False)
# Offsets that reach into the next batch, one up and one down; how far the last batch reaches.
@example(file=0, place=0.1469570240699689, bit=0, zeros=0, max_bytes=1, scrubs=True)
@example(file=0, place=0.1469570240699689, bit=0, zeros=0, max_bytes=1, scrubs=False)
@example(file=0, place=0.1875, bit=0, zeros=0, max_bytes=1, scrubs=False)
@example(file=3, place=0.91015625, bit=0, zeros=0, max_bytes=1, scrubs=False)
def test_damage_is_never_served_and_the_rest_is(file, place, bit, zeros, max_bytes, scrubs):
    with tempfile.TemporaryDirectory() as path:
        closed = Closed(Path(path) / "topic-0")
        logs = closed.files(".log")
        victim = logs[file % len(logs)]
        before = victim.read_bytes()
        _change(victim, int(place * len(before)), bit, zeros)
        log = closed.open()
        assert log.log_end_offset == closed.end
        is_changed = victim.read_bytes() != before
        if scrubs:
            known = bool(log.damages)
            assert bool(_scrub(log)) or known == is_changed
        missing = _check_refused(log, closed, _read_around(log, max_bytes))
        assert bool(missing) == is_changed
        assert zeros or missing <= 2
        _heal(log, closed)
        log.abandon()


def _heal(log: PartitionLog, closed: Closed) -> None:
    """Cut it, and append what a leader has: the log is what it was."""
    end = log.cut_damage()
    assert not log.is_damaged
    assert log.damages == []
    for batch in closed.batches:
        if next(iterate_headers(batch))[1].base_offset >= end:
            log.append_as_follower(bytearray(batch))
    assert content(log) == closed.batches
    assert log.log_end_offset == closed.end


@pytest.mark.parametrize("position", _FIELDS)
@pytest.mark.parametrize("bit", range(8))
def test_no_bit_of_a_header_may_flip_unseen(tmp_path, position, bit):
    closed = Closed(tmp_path / "topic-0")
    victim = closed.files(".log")[2]
    _change(victim, position, bit)
    log = closed.open()
    missing = _check_refused(log, closed, _read_around(log, 1 << 20))
    assert 1 <= missing <= 2
    log.abandon()


@pytest.mark.parametrize("bit", range(1, 7))
def test_a_leader_epoch_that_the_disk_changed_is_not_believed_where_an_index_is_lost(tmp_path, bit):
    closed = Closed(tmp_path / "topic-0")
    log = closed.open()
    entries = log.leader_epochs.entries
    log.abandon()
    victim = closed.files(".log")[2]
    _change(victim, LEADER_EPOCH_POSITION + 3, bit)
    victim.with_suffix(".index").unlink()
    log = closed.open()
    assert log.leader_epochs.entries == entries
    assert _check_refused(log, closed, _read_around(log, 1 << 20)) == 1
    _heal(log, closed)
    log.abandon()


@given(
    file=st.integers(0, 100),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
    suffix=st.sampled_from((".index", ".timeindex")),
)
# A position behind the end of the file, and one before its beginning.
@example(file=3, place=0.375, bit=0, suffix=".index")
@example(file=1, place=0.375, bit=7, suffix=".index")
def test_a_damaged_index_costs_no_record(file, place, bit, suffix):
    with tempfile.TemporaryDirectory() as path:
        closed = Closed(Path(path) / "topic-0")
        indexes = [each for each in closed.files(suffix) if each.stat().st_size]
        victim = indexes[file % len(indexes)]
        _change(victim, int(place * victim.stat().st_size), bit)
        log = closed.open()
        assert list(_read_around(log, 1).values()) == closed.batches
        log.reader.forget()
        for batch in closed.batches:
            offset = next(iterate_headers(batch))[1].base_offset
            assert log.read(offset, 1, upper_bound=closed.end, at_least_one=True) == batch
        assert log.damages == []
        log.abandon()


def test_a_segment_that_lost_its_tail_is_damaged(tmp_path):
    closed = Closed(tmp_path / "topic-0")
    victim = closed.files(".log")[-1]
    size = victim.stat().st_size
    with victim.open("r+b") as file:
        file.truncate(size - len(closed.batches[-1]))
    log = closed.open()
    assert log.log_end_offset == closed.end
    assert _check_refused(log, closed, _read_around(log, 1 << 20)) == 1
    append(log, batch_of(b"more"), epoch=9)
    assert log.read(closed.end, 1, upper_bound=closed.end + 1, at_least_one=True)
    log.abandon()


def test_compaction_does_not_give_damage_a_new_checksum(tmp_path):
    closed = Closed(tmp_path / "topic-0", cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    victim = closed.files(".log")[1]
    before = victim.read_bytes()
    _change(victim, len(before) - 3)
    log = closed.open()
    compaction = Compaction.begin(log, START_MS + 10**9)
    assert compaction is not None
    with suppress(Exception):
        compaction.run()
    assert not compaction.finish()
    _scrub(log)
    assert Compaction.begin(log, START_MS + 10**9) is None
    assert _check_refused(log, closed, _read_around(log, 1 << 20)) == 1
    log.abandon()


def test_a_compacted_log_is_replicated_again_as_a_whole(tmp_path):
    """Tombstones of what it has before the damage may be gone from its leader's log."""
    closed = Closed(tmp_path / "topic-0", cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
    victim = closed.files(".log")[1]
    _change(victim, victim.stat().st_size - 3)
    log = closed.open()
    _scrub(log)
    assert log.damages[0].first_offset > log.log_start_offset
    assert log.cut_damage() == log.log_start_offset
    for batch in closed.batches:
        log.append_as_follower(bytearray(batch))
    assert content(log) == closed.batches
    log.abandon()


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_log_is_whole_again_once_its_damage_is_truncated(tmp_path, is_whole):
    closed = Closed(tmp_path / "topic-0")
    victim = closed.files(".log")[1]
    _change(victim, victim.stat().st_size - 3)
    log = closed.open()
    _scrub(log)
    assert log.is_damaged
    if is_whole:
        log.truncate_fully_and_start_at(closed.end + 100)
    else:
        log.truncate_to(log.damages[0].first_offset)
    assert log.damages == []
    assert not log.is_damaged
    log.abandon()


def test_times_are_looked_up_around_damage(tmp_path):
    closed = Closed(tmp_path / "topic-0")
    _change(closed.files(".log")[0], 70)
    log = closed.open()
    found = log.fetch_offset_by_timestamp(0)
    assert found is not None
    assert found.offset == log.damages[0].next_offset
    log.abandon()


def test_what_this_process_wrote_is_not_checked_again(new_log):
    log = new_log(**_SETTINGS)
    for number in range(20):
        append(log, batch_of(b"%d" % number))
    assert {segment.unchecked for segment in log.segments} == {(0, 0)}


def test_damage_before_the_logs_start_is_nobodys(tmp_path):
    """Seed 3229 with 5 nodes: it was neither cut nor forgotten, and its replica never healed."""
    closed = Closed(tmp_path)
    _, header = next(iterate_headers(closed.batches[2]))
    _change(closed.files(".log")[0], sum(map(len, closed.batches[:2])) + 70)
    log = closed.open()
    told = []
    log.on_damage = lambda: told.append(log.is_damaged)
    log.delete_records_before(header.last_offset + 1)
    _scrub(log)
    assert log.segments.first.damages
    assert not log.is_damaged
    assert not told
    assert len(_read_around(log, 1000)) == _BATCHES - 3
    log.close()


def test_a_batch_without_its_header_is_not_served_though_this_process_wrote_it(new_log):
    log = new_log(index_interval_bytes=1)
    for number in range(4):
        append(log, batch_of(b"%d" % number))
    position = log.segments.active.position_of(1)
    _change(log.segments.active.path, position + 16, bit=3)
    log.high_watermark = log.log_end_offset
    with capture_logs() as said:
        assert set(_read_around(log, 1)) == {0, 2, 3}
    assert [line["bytes"] for line in said] == [len(batch_of(b"1"))]


def test_what_is_read_first_does_not_count_what_lies_before_it_as_checked(tmp_path):
    closed = Closed(tmp_path / "topic-0")
    _change(closed.files(".log")[0], 70)
    log = closed.open()
    (first, second) = (next(iterate_headers(batch))[1] for batch in closed.batches[:2])
    end = log.log_end_offset
    assert log.read(second.base_offset, 1, upper_bound=end, at_least_one=True) == closed.batches[1]
    with pytest.raises(ApiError, match="CORRUPT_MESSAGE"):
        log.read(first.base_offset, 1, upper_bound=end, at_least_one=True)
    log.abandon()


def test_a_start_compares_the_offset_of_the_last_batch_in_the_index_with_it(tmp_path):
    closed = Closed(tmp_path / "topic-0", segment_bytes=1 << 20)
    log = closed.open()
    offset, position = log.segments.active.offset_index.last
    log.abandon()
    assert 64 < offset < 128
    _change(closed.files(".log")[0], position + 7, bit=6)
    log = closed.open()
    assert len(log.damages) == 1
    assert log.log_end_offset == closed.end
    log.abandon()


def test_the_end_that_a_stop_noted_is_no_limit_where_the_log_goes_on(tmp_path):
    closed = Closed(tmp_path / "topic-0", segment_bytes=1 << 20)
    closed.end -= 3
    log = closed.open()
    assert not log.damages
    assert content(log) == closed.batches
    log.abandon()
