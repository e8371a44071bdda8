"""Reads: whole batches, bounds, positions in the middle, timestamps."""

import os
import random

import pytest

from headrace_broker.log.batches import iterate_headers
from headrace_broker.protocol.batch import NewRecord, build_batch
from headrace_broker.protocol.errors import ApiError, ErrorCode
from support.log import START_MS, append, batch_of, content, headers_from

KEEP = {"upper_bound": 1 << 60, "at_least_one": True}


def filled(new_log, batches=200, **settings):
    """Append batches of one to five records of random size; return the log and the batches."""
    settings = {"segment_bytes": 5000, "index_interval_bytes": 300} | settings
    log = new_log(**settings)
    rng = random.Random(7)
    for _ in range(batches):
        values = [rng.randbytes(rng.randrange(120)) for _ in range(rng.randrange(1, 6))]
        append(log, batch_of(*values))
    return log, [(next(iterate_headers(batch))[1], batch) for batch in content(log)]


def test_a_read_begins_with_the_batch_that_holds_the_offset(new_log):
    log, batches = filled(new_log)
    log.reader.forget()
    for header, batch in batches:
        for offset in range(header.base_offset, header.last_offset + 1):
            assert log.read(offset, 1, **KEEP) == batch


def test_a_read_returns_whole_batches_up_to_the_size_asked_for(new_log):
    log, batches = filled(new_log)
    for size in (200, 1000, 3000):
        for header, batch in batches[::9]:
            data = log.read(header.base_offset, size, **KEEP)
            found = list(iterate_headers(data))
            assert sum(each.size_bytes for _, each in found) == len(data)
            assert found[0][1].base_offset == header.base_offset
            assert len(data) <= max(size, len(batch))


def test_nothing_at_or_above_the_upper_bound_is_read(new_log):
    log, batches = filled(new_log)
    for header, _ in batches[3::11]:
        bound = header.base_offset
        seen = 0
        while seen < bound:
            data = log.read(seen, 1 << 20, upper_bound=bound, at_least_one=True)
            seen = list(iterate_headers(data))[-1][1].last_offset + 1
        assert seen == bound
        assert log.read(bound, 1 << 20, upper_bound=bound, at_least_one=True) == b""


def test_a_batch_larger_than_asked_for_comes_only_if_one_must(new_log):
    log = new_log()
    append(log, batch_of(b"x" * 1000))
    assert log.read(0, 10, upper_bound=1, at_least_one=False) == b""
    assert len(log.read(0, 10, upper_bound=1, at_least_one=True)) > 1000


def test_offsets_outside_the_log_are_out_of_range(new_log):
    log = new_log()
    append(log, batch_of(b"a", b"b"))
    assert log.read(2, 100, **KEEP) == b""
    for offset in (-1, 3):
        with pytest.raises(ApiError) as caught:
            log.read(offset, 100, **KEEP)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    log.delete_records_before(1)
    with pytest.raises(ApiError):
        log.read(0, 100, **KEEP)
    with pytest.raises(ApiError):
        log.delete_records_before(3)


def test_a_sequential_reader_costs_one_read_per_fetch(new_log, monkeypatch):
    log, batches = filled(new_log, 3000, segment_bytes=1 << 30)
    calls = []
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda *args: calls.append(args) or real(*args))
    offset = log.read(0, 2000, upper_bound=log.log_end_offset, at_least_one=True) and 0
    fetches = 0
    while offset < log.log_end_offset:
        before = len(calls)
        data = log.read(offset, 2000, upper_bound=log.log_end_offset, at_least_one=True)
        fetches += 1
        offset = list(iterate_headers(data))[-1][1].last_offset + 1
        # Reads of whole 8-byte index entries find the cut; the log itself is read once.
        assert sum(1 for _, size, _ in calls[before:] if size > 1024) <= 2
    assert fetches > 10
    assert batches


def test_a_lookup_costs_the_same_in_a_log_a_hundred_times_as_long(new_log, monkeypatch):
    log = new_log(index_interval_bytes=100)
    costs = []
    read_bytes = [0]
    real = os.pread

    def counting(fd, size, position):
        read_bytes[0] += size
        return real(fd, size, position)

    monkeypatch.setattr(os, "pread", counting)
    for batches in (300, 30_000):
        while log.log_end_offset < batches:
            append(log, batch_of(b"x" * 40))
        log.reader.forget()
        read_bytes[0] = 0
        log.read(batches // 2, 100, upper_bound=log.log_end_offset, at_least_one=True)
        costs.append(read_bytes[0])
    assert costs[1] < costs[0] + 8192


@pytest.mark.parametrize("restarted", [False, True])
def test_timestamps_find_the_first_record_at_or_after_them(new_log, restarted):
    log = new_log(segment_bytes=2000, index_interval_bytes=200)
    rng = random.Random(3)
    times = []
    for _ in range(300):
        time = START_MS + rng.randrange(10_000)
        append(log, batch_of(b"x" * 20, base_timestamp=time), epoch=2)
        times.append(time)
    if restarted:
        log.close()
        log = new_log(segment_bytes=2000, index_interval_bytes=200)
    for wanted in range(START_MS - 10, START_MS + 10_000, 97):
        found = log.fetch_offset_by_timestamp(wanted)
        expected = next((at for at, time in enumerate(times) if time >= wanted), None)
        assert (found and found.offset) == expected
        if found:
            assert (found.timestamp, found.leader_epoch) == (times[expected], 2)
    assert log.fetch_offset_by_timestamp(START_MS + 20_000) is None
    largest = log.max_timestamp_offset()
    assert (largest.offset, largest.timestamp) == (times.index(max(times)), max(times))


def test_the_times_of_what_was_cut_are_forgotten(new_log):
    log = new_log(index_interval_bytes=0)
    for number in range(10):
        append(log, batch_of(b"v", base_timestamp=START_MS + number))
    log.truncate_to(4)
    assert log.segments.active.largest_timestamp == START_MS + 3
    assert log.fetch_offset_by_timestamp(START_MS + 4) is None
    append(log, batch_of(b"v", base_timestamp=START_MS + 4))
    assert log.fetch_offset_by_timestamp(START_MS + 4).offset == 4


def test_an_empty_log_has_no_timestamps(new_log):
    log = new_log()
    assert log.max_timestamp_offset() is None
    assert log.fetch_offset_by_timestamp(0) is None


def test_records_without_a_time_have_the_largest_one_until_others_come(new_log):
    """As in Apache Kafka, where no time is -1."""
    log = new_log()
    append(log, batch_of(b"a", b"b", base_timestamp=-1), epoch=2)
    assert log.max_timestamp_offset() == (0, -1, 2)
    append(log, batch_of(b"c", base_timestamp=START_MS), epoch=2)
    assert log.max_timestamp_offset() == (2, START_MS, 2)


def test_readers_of_both_ends_see_the_same_bytes(new_log):
    log, batches = filled(new_log)
    assert [h.base_offset for h in headers_from(log, 0, 700)] == [h.base_offset for h, _ in batches]


@pytest.mark.parametrize("segment_bytes", [1 << 20, 400], ids=["one segment", "several"])
@pytest.mark.parametrize("per_batch", [1, 3])
def test_the_newest_record_is_the_newest_of_those_that_are_left(new_log, segment_bytes, per_batch):
    log = new_log(segment_bytes=segment_bytes)
    times = [START_MS + age for age in (5000, 9000, 1000, 7000, 7000, 3000, 4000, 2000, 6000, 500)]
    times = times[: len(times) // per_batch * per_batch]
    for first in range(0, len(times), per_batch):
        batch = [NewRecord(None, b"x" * 60, time) for time in times[first : first + per_batch]]
        append(log, build_batch(batch))
    assert (len(log.segments) > 1) == (segment_bytes == 400)
    log.high_watermark = log.log_end_offset
    for start in range(len(times)):
        log.delete_records_before(start)
        newest = max(times[start:])
        found = log.max_timestamp_offset()
        assert (found.offset, found.timestamp) == (times.index(newest, start), newest)
    log.delete_records_before(len(times))
    assert log.max_timestamp_offset() is None
