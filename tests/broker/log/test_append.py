"""What a leader accepts, what it refuses and with which error, and what then lies on disk."""

import os

import pytest

from headrace_broker.log.batches import OFFSET_AND_LENGTH, read_header
from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.log.segments.segment import RELATIVE_OFFSET_MAX
from headrace_broker.log.validation import AppendOrigin
from headrace_broker.protocol.batch_header import HEADER_SIZE
from headrace_broker.protocol.errors import ApiError, ErrorCode
from support.log import START_MS, append, batch_of, content, headers_from, marker


def refusal(log, batch, **arguments):
    """Append what must be refused; return the error's code."""
    before = log.log_end_offset, log.size_bytes
    arguments.setdefault("now_ms", START_MS)
    with pytest.raises(ApiError) as caught:
        log.append_as_leader(batch, 0, **arguments)
    assert (log.log_end_offset, log.size_bytes) == before
    return caught.value.code


def test_offsets_follow_each_other_and_the_epoch_is_patched(new_log):
    log = new_log()
    first = append(log, batch_of(b"a", b"b"), epoch=3)
    second = append(log, batch_of(b"c"), epoch=4)
    assert (first.first_offset, first.last_offset) == (0, 1)
    assert (second.first_offset, second.last_offset) == (2, 2)
    assert first.log_append_time_ms == -1
    assert not first.is_duplicate
    assert [h.partition_leader_epoch for h in headers_from(log, 0)] == [3, 4]
    assert log.leader_epochs.entries == [(3, 0), (4, 2)]


def test_a_read_only_buffer_is_appended_as_well_as_a_writable_one(new_log):
    log = new_log()
    append(log, bytes(batch_of(b"a", b"b")))
    append(log, bytes(batch_of(b"a", b"b")))
    append(log, batch_of(b"a", b"b"))
    batches = content(log)
    assert [read_header(batch).base_offset for batch in batches] == [0, 2, 4]
    assert len({batch[16:] for batch in batches}) == 1


def test_log_append_time_replaces_the_producers_time_and_the_checksum_holds(new_log):
    log = new_log(message_timestamp_type="LogAppendTime")
    for buffer in (batch_of(b"a", b"b"), bytes(batch_of(b"a", b"b"))):
        info = log.append_as_leader(buffer, 0, now_ms=START_MS + 5)
        assert info.log_append_time_ms == START_MS + 5
    for header in headers_from(log, 0):
        assert header.max_timestamp == START_MS + 5
        assert header.attributes & 0x08
    assert len({batch[35:43] for batch in content(log)}) == 1


def test_followers_take_offsets_and_epochs_as_they_come(new_log, tmp_path, clock):
    leader = new_log()
    for number in range(5):
        append(leader, batch_of(b"a", b"b"), epoch=number // 2)
    follower = type(leader).open(tmp_path / "follower-0", leader.config, clock=clock)
    wire = b"".join(content(leader))
    info = follower.append_as_follower(wire[:-3])
    assert (info.first_offset, info.last_offset) == (0, 7)
    follower.append_as_follower(content(leader)[-1])
    assert content(follower) == content(leader)
    assert follower.leader_epochs.entries == leader.leader_epochs.entries
    with pytest.raises(ApiError) as caught:
        follower.append_as_follower(content(leader)[0])
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    follower.abandon()


def test_a_follower_takes_nothing_that_was_changed_on_the_way(new_log, tmp_path, clock):
    leader = new_log()
    for _ in range(3):
        append(leader, batch_of(b"a", b"b"))
    follower = type(leader).open(tmp_path / "follower-0", leader.config, clock=clock)
    wire = bytearray(b"".join(content(leader)))
    wire[-1] ^= 1
    with pytest.raises(ApiError, match="damaged") as caught:
        follower.append_as_follower(wire)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    assert follower.log_end_offset == 0
    follower.abandon()


def test_a_follower_that_begins_within_a_batch_takes_the_whole_batch(new_log, tmp_path, clock):
    leader = new_log()
    for _ in range(3):
        append(leader, batch_of(b"a", b"b", b"c", b"d"))
    leader.delete_records_before(5)
    follower = type(leader).open(tmp_path / "follower-0", leader.config, clock=clock)
    follower.truncate_fully_and_start_at(5)
    follower.high_watermark = 5
    follower.append_as_follower(b"".join(content(leader)[1:]))
    assert content(follower) == content(leader)[1:]
    assert (follower.log_start_offset, follower.high_watermark) == (5, 5)
    assert follower.log_end_offset == leader.log_end_offset
    with pytest.raises(ApiError):
        follower.append_as_follower(content(leader)[1])
    follower.abandon()


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (b"\x00" * 30, ErrorCode.INVALID_RECORD),
        (batch_of(b"a", magic=1), ErrorCode.INVALID_RECORD),
        (batch_of(b"a", magic=0), ErrorCode.INVALID_RECORD),
        (batch_of(b"a", magic=3), ErrorCode.CORRUPT_MESSAGE),
        (batch_of(b"a", crc=1), ErrorCode.CORRUPT_MESSAGE),
        (batch_of(b"a", batch_length=-1), ErrorCode.CORRUPT_MESSAGE),
        (batch_of(b"a", batch_length=2**31 - 1), ErrorCode.CORRUPT_MESSAGE),
        (batch_of(b"a")[:-1], ErrorCode.CORRUPT_MESSAGE),
        (batch_of(b"a") * 2, ErrorCode.INVALID_RECORD),
        (batch_of(b"a", record_count=2), ErrorCode.INVALID_RECORD),
        (batch_of(b"a", last_offset_delta=1), ErrorCode.INVALID_RECORD),
        (batch_of(b"a", record_count=0, last_offset_delta=-1), ErrorCode.INVALID_RECORD),
        (batch_of(b"a", base_offset=7), ErrorCode.INVALID_RECORD),
        (batch_of(b"a", attributes=0x20), ErrorCode.INVALID_RECORD),
        (batch_of(b"a", attributes=0x10), ErrorCode.INVALID_RECORD),
        (batch_of(b"a", producer_id=1, producer_epoch=0), ErrorCode.INVALID_RECORD),
        (batch_of(b"a", producer_id=1, base_sequence=0), ErrorCode.INVALID_RECORD),
        (batch_of(b"a", attributes=0x08), ErrorCode.INVALID_TIMESTAMP),
        (batch_of(b"a", base_timestamp=START_MS + 3_600_001), ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_bad_batches_are_refused_with_kafkas_errors_and_leave_nothing(new_log, batch, code):
    log = new_log()
    append(log, batch_of(b"good"))
    assert refusal(log, batch) is code


def test_sizes_are_limited_by_the_topic_and_by_the_segment(new_log):
    log = new_log(max_message_bytes=1000, segment_bytes=800)
    assert refusal(log, batch_of(b"x" * 1000)) is ErrorCode.MESSAGE_TOO_LARGE
    assert refusal(log, batch_of(b"x" * 800)) is ErrorCode.RECORD_LIST_TOO_LARGE
    append(log, batch_of(b"x" * 600))


def test_coordinators_may_write_markers(new_log):
    log = new_log()
    log.append_as_leader(
        marker(1, 0, commit=True), 0, now_ms=START_MS, origin=AppendOrigin.COORDINATOR
    )
    assert log.log_end_offset == 1


def test_a_full_disk_leaves_no_half_batch_and_fails_the_directory(new_log, monkeypatch):
    log = new_log()
    append(log, batch_of(b"a"))
    size = log.size_bytes
    real = os.pwrite

    def half_then_full(fd, data, position):
        if position > size:
            raise OSError(28, "No space left on device")
        return real(fd, bytes(data)[: len(data) // 2], position)

    monkeypatch.setattr(os, "pwrite", half_then_full)
    with pytest.raises(LogDirectoryFailure, match="No space"):
        append(log, batch_of(b"b"))
    assert log.segments.active.path.stat().st_size == size
    assert log.log_end_offset == 1


def test_a_short_write_is_finished(new_log, monkeypatch):
    log = new_log()
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, bytes(data)[:HEADER_SIZE], at))
    append(log, batch_of(b"a" * 300))
    monkeypatch.undo()
    append(log, bytes(batch_of(b"b" * 300)))
    assert [read_header(batch).base_offset for batch in content(log)] == [0, 1]


def test_a_failed_fsync_is_never_retried(new_log, monkeypatch):
    log = new_log()
    append(log, batch_of(b"a"))

    def broken(_fd):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(LogDirectoryFailure, match="Input/output"):
        log.flush()
    assert log.recovery_point == 0


def test_segments_roll_by_size(new_log):
    by_size = new_log(segment_bytes=500)
    for _ in range(10):
        append(by_size, batch_of(b"x" * 100))
    assert all(segment.size <= 500 for segment in by_size.segments)
    assert len(by_size.segments) == 5


def test_a_batch_that_just_fits_does_not_roll_its_segment(new_log):
    size = len(batch_of(b"x" * 100))
    log = new_log(segment_bytes=3 * size)
    for _ in range(4):
        append(log, batch_of(b"x" * 100))
    assert [segment.base_offset for segment in log.segments] == [0, 3]


def test_segments_roll_by_the_time_between_records(new_log):
    log = new_log(segment_ms=1000)
    for age in (0, 900, 1001, 1500, 2002):
        append(log, batch_of(b"x", base_timestamp=START_MS + age))
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4]


def test_segments_roll_when_an_index_is_full(new_log):
    log = new_log(segment_index_bytes=36, index_interval_bytes=1)
    for number in range(10):
        append(log, batch_of(b"x" * 100, base_timestamp=START_MS + number))
    assert [segment.base_offset for segment in log.segments] == [0, 4, 8]


def test_flush_messages_of_one_leaves_no_record_unflushed(new_log):
    log = new_log(flush_messages=1)
    for value in (b"a", b"b", b"c"):
        assert append(log, batch_of(value)).last_offset + 1 == log.recovery_point


def test_a_follower_takes_batches_that_compaction_left_far_from_each_other(new_log, folder):
    """A segment's indexes name offsets relative to its first one, in 31 bits."""
    log = new_log(index_interval_bytes=1, file_delete_delay_ms=0)
    last = 3 * RELATIVE_OFFSET_MAX
    offsets = [last, last + 1, last + RELATIVE_OFFSET_MAX, last + RELATIVE_OFFSET_MAX + 1]
    for offset in offsets:
        batch = batch_of(b"v")
        OFFSET_AND_LENGTH.pack_into(batch, 0, offset, len(batch) - OFFSET_AND_LENGTH.size)
        assert log.append_as_follower(batch) is not None
    assert [segment.base_offset for segment in log.segments] == [last, offsets[-1]]
    assert [header.base_offset for header in headers_from(log, 0)] == offsets
    log.removal.run_due(START_MS)
    assert len(list(folder.glob("*.log*"))) == 2, "the empty segment is gone"


def test_a_follower_takes_what_fits_into_one_segment_of_what_it_is_sent(new_log):
    log = new_log(index_interval_bytes=1)
    data = b""
    for offset in (0, 5, RELATIVE_OFFSET_MAX + 1):
        batch = batch_of(b"v")
        OFFSET_AND_LENGTH.pack_into(batch, 0, offset, len(batch) - OFFSET_AND_LENGTH.size)
        data += batch
    info = log.append_as_follower(data)
    assert info is not None
    assert (info.last_offset, log.log_end_offset) == (5, 6)
    assert log.append_as_follower(data[-(len(data) // 3) :]) is not None
    assert [segment.base_offset for segment in log.segments] == [0, RELATIVE_OFFSET_MAX + 1]
