"""Compaction: the newest record of each key stays, and everything else that must."""

import os
import random
import shutil
from dataclasses import replace

import pytest

from headrace_broker.log.compaction import Compaction
from headrace_broker.log.config import LogConfig
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.log.segments.segment import RELATIVE_OFFSET_MAX
from headrace_broker.log.segments.time_lookup import max_timestamp_record
from headrace_broker.log.validation import AppendOrigin
from headrace_broker.protocol.batch import NewRecord, build_batch, iterate_records
from headrace_broker.protocol.batch_header import HEADER_SIZE, MAX_TIMESTAMP_POSITION, seal
from headrace_broker.protocol.compression import Compression
from headrace_broker.protocol.errors import ApiError, ErrorCode
from support.log import START_MS, append, batch_of, compact, content, headers_from, marker, open_at

SETTINGS = {"cleanup_policy": "compact", "segment_bytes": 1000, "min_cleanable_dirty_ratio": 0.0}


def put(log, key, value, **options):
    record = NewRecord(key=key, value=value, timestamp=START_MS)
    return append(log, build_batch([record], **options))


def in_transaction(producer_id, sequence=0):
    return {
        "producer_id": producer_id,
        "producer_epoch": 0,
        "base_sequence": sequence,
        "is_transactional": True,
    }


def end(log, producer_id, *, commit):
    batch = marker(producer_id, 0, commit=commit)
    log.append_as_leader(batch, 0, now_ms=START_MS, origin=AppendOrigin.COORDINATOR)


def records_of(log):
    return [record for batch in content(log) for record in iterate_records(batch)]


def commit(log):
    log.roll(START_MS)
    log.high_watermark = log.log_end_offset


@pytest.mark.parametrize("compression", list(Compression))
def test_the_newest_record_of_each_key_stays_at_its_offset(new_log, compression):
    log = new_log(**SETTINGS)
    rng = random.Random(5)
    expected = {}
    for number in range(300):
        batch = [
            NewRecord(
                b"key%d" % rng.randrange(20), b"%d" % number, START_MS + number, [("h", b"x")]
            )
            for _ in range(3)
        ]
        info = append(log, build_batch(batch, compression=compression))
        for delta, record in enumerate(batch):
            expected[record.key] = (info.first_offset + delta, record.value, record.timestamp)
    commit(log)
    size = log.size_bytes
    assert compact(log, START_MS)
    found = {r.key: (r.offset, r.value, r.timestamp) for r in records_of(log)}
    assert found == expected
    assert len(records_of(log)) == len(expected)
    assert log.size_bytes < size / 3
    for offset, value, _ in expected.values():
        batch = log.read(offset, 1, upper_bound=log.log_end_offset, at_least_one=True)
        assert value in [r.value for r in iterate_records(batch) if r.offset == offset]
    assert not compact(log, START_MS), "nothing is dirty any more"


def test_the_active_segment_and_what_is_not_committed_are_left_alone(new_log):
    log = new_log(**SETTINGS)
    for _ in range(40):
        put(log, b"k", b"x" * 100)
    log.high_watermark = 20
    active = log.segments.active.base_offset
    compact(log, START_MS)
    offsets = [record.offset for record in records_of(log)]
    assert [offset for offset in offsets if offset >= 20] == list(range(20, 40))
    assert len([offset for offset in offsets if offset < 20]) < 10
    assert log.segments.active.base_offset == active


def test_tombstones_stay_for_delete_retention_and_then_go(new_log):
    log = new_log(**SETTINGS, delete_retention_ms=1000)
    put(log, b"k", b"v")
    put(log, b"k", None)
    put(log, b"other", b"v")
    commit(log)
    assert compact(log, START_MS)
    assert [(r.key, r.value, r.timestamp) for r in records_of(log)] == [
        (b"k", None, START_MS),
        (b"other", b"v", START_MS),
    ]
    for now_ms, left in ((START_MS + 1000, 2), (START_MS + 1001, 1)):
        put(log, b"more", b"v")
        commit(log)
        assert compact(log, now_ms)
        assert len([r for r in records_of(log) if r.key != b"more"]) == left


def test_a_follower_reaches_the_end_of_a_log_whose_newest_record_is_gone(new_log, folder, clock):
    log = new_log(**SETTINGS, delete_retention_ms=1000)
    put(log, b"other", b"v")
    put(log, b"k", None)
    commit(log)
    assert compact(log, START_MS)
    # This replica got the tombstone with its horizon, so that its own first pass removes it.
    copied, follower = (
        PartitionLog.open(folder.parent / name, log.config, clock=clock)
        for name in ("topic-1", "topic-2")
    )
    for batch in content(log):
        copied.append_as_follower(batch)
    commit(copied)
    assert compact(copied, START_MS + 1001)
    assert [record.key for record in records_of(copied)] == [b"other"]
    for batch in content(copied):
        follower.append_as_follower(batch)
    assert follower.log_end_offset == copied.log_end_offset == 2
    copied.abandon()
    follower.abandon()


def test_the_last_five_batches_of_a_producer_stay_for_its_retries(new_log, folder, clock):
    log = new_log(**SETTINGS)
    batches = [
        build_batch(
            [NewRecord(key=b"k", value=b"%d" % sequence, timestamp=START_MS)],
            producer_id=1,
            producer_epoch=0,
            base_sequence=sequence,
        )
        for sequence in range(7)
    ]
    for batch in batches:
        append(log, bytearray(batch))
    put(log, b"k", b"newest")
    commit(log)
    for _ in range(2):  # what was emptied stays in the next pass, too
        assert compact(log, START_MS)
        headers = list(headers_from(log, 0))
        kept = [(h.base_offset, h.record_count) for h in headers if h.producer_id == 1]
        assert kept == [(offset, 0) for offset in range(2, 7)]
        put(log, b"k", b"newest")
        commit(log)
    follower = PartitionLog.open(folder.parent / "topic-1", log.config, clock=clock)
    for batch in content(log):
        follower.append_as_follower(batch)
    for snapshot in folder.glob("*.snapshot"):
        snapshot.unlink()
    log.abandon()
    for held in (follower, open_at(folder, clock, **SETTINGS)):
        retried = [append(held, bytearray(batch)) for batch in batches[2:]]
        assert [(info.is_duplicate, info.first_offset) for info in retried] == [
            (True, offset) for offset in range(2, 7)
        ]
        held.abandon()


def test_a_batch_that_compaction_emptied_is_not_the_newest_of_its_followers(new_log, folder, clock):
    log = new_log(**SETTINGS)
    producer = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0}
    late = NewRecord(key=b"k", value=b"late", timestamp=START_MS + 1000)
    append(log, bytearray(build_batch([late], **producer)))
    put(log, b"k", b"newest")
    commit(log)
    assert compact(log, START_MS)
    assert next(headers_from(log, 0)).record_count == 0
    follower = PartitionLog.open(folder.parent / "topic-1", log.config, clock=clock)
    for batch in content(log):
        follower.append_as_follower(batch)
    data = log.read(0, 100, upper_bound=log.log_end_offset, at_least_one=False)
    assert len(data) == HEADER_SIZE, "it is a whole batch"
    newest = [max_timestamp_record(each.segments, 0) for each in (log, follower)]
    assert newest[0] is not None
    assert newest[0] == newest[1]
    follower.abandon()


def test_a_producers_sequence_outlives_the_loss_of_what_was_not_cleaned(new_log, folder, clock):
    log = new_log(**SETTINGS)
    put(log, b"k", b"1", producer_id=1, producer_epoch=0, base_sequence=0)
    put(log, b"k", b"2", producer_id=1, producer_epoch=0, base_sequence=1)
    put(log, b"k", b"3")
    commit(log)
    put(log, b"k", b"4", producer_id=1, producer_epoch=0, base_sequence=2)
    compact(log, START_MS)
    active = log.segments.active.path
    log.abandon()
    os.truncate(active, 0)  # a power cut before its fsync
    for snapshot in folder.glob("*.snapshot"):
        snapshot.unlink()
    again = open_at(folder, clock, **SETTINGS)
    assert again.producers.get(1).last_sequence == 1
    again.abandon()


def test_records_of_aborted_transactions_neither_stay_nor_hide_others(new_log):
    log = new_log(**SETTINGS)
    put(log, b"k", b"committed")
    put(log, b"k", b"aborted", **in_transaction(3))
    end(log, 3, commit=False)
    put(log, b"z", b"other")
    commit(log)
    compact(log, START_MS)
    assert [r.value for r in records_of(log) if r.key in (b"k", b"z")] == [b"committed", b"other"]


def test_an_abort_is_known_whose_marker_lies_beyond_what_is_cleaned(new_log):
    log = new_log(**SETTINGS)
    put(log, b"k", b"committed")
    put(log, b"k", b"aborted", **in_transaction(3))
    log.roll(START_MS)
    put(log, b"open", b"open", **in_transaction(4))
    end(log, 3, commit=False)
    commit(log)
    assert log.last_stable_offset == 2
    assert compact(log, START_MS)
    assert [r.value for r in records_of(log) if r.key == b"k"] == [b"committed"]


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_marker_stays_until_its_records_are_gone_and_their_readers_too(new_log, is_commit):
    log = new_log(**SETTINGS, delete_retention_ms=100)
    put(log, b"k", b"first", **in_transaction(3))
    end(log, 3, commit=is_commit)
    for number in range(1, 8):
        fields = in_transaction(3, number)
        put(log, b"k", b"again", **fields)
    end(log, 3, commit=True)
    markers, now_ms = [], START_MS
    for age_ms in (0, 10, 99, 200, 10):
        now_ms += age_ms
        put(log, b"z", b"%d" % now_ms)
        commit(log)
        log.cleaner_offset = 0
        assert compact(log, now_ms)
        found = [header.base_offset for header in headers_from(log, 0) if header.is_control]
        aborted = [entry.last_offset for entry in log.aborted_transactions(0, 100)]
        assert not aborted or 1 in found, "an index names a marker that is gone"
        markers.append(1 in found)
    # Cleaned away; the horizon is set; not over; over: gone.
    assert markers == [True, True, True, False, False]
    assert 9 in found, "the newest marker of a producer tells its epoch"
    assert [r.value for r in records_of(log) if r.key == b"k"] == [b"again"]


def test_tombstones_and_markers_stay_while_a_replica_is_away(new_log):
    """One that came back would keep the deleted record, and take the aborted one for committed."""
    log = new_log(**SETTINGS, delete_retention_ms=100)
    put(log, b"k", b"v")
    put(log, b"aborted", b"v", **in_transaction(3))
    put(log, b"k", None)
    end(log, 3, commit=False)
    for number in range(1, 8):
        put(log, b"aborted", b"again", **in_transaction(3, number))
    end(log, 3, commit=True)  # whose marker tells the producer's epoch from then on
    now_ms, kept = START_MS, []
    for is_everywhere in (False, False, False, True):
        put(log, b"z", b"%d" % now_ms)
        commit(log)
        log.cleaner_offset = 0
        assert compact(log, now_ms, is_everywhere=is_everywhere)
        tombstones = [record.offset for record in records_of(log) if record.value is None]
        markers = [header.base_offset for header in headers_from(log, 0) if header.is_control]
        kept.append((tombstones, markers))
        now_ms += 200
    assert kept == [([2], [3, 11])] * 3 + [([], [11])]


def test_a_map_that_is_full_leaves_the_rest_for_the_next_pass(new_log):
    log = new_log(**SETTINGS)
    for number in range(100):
        put(log, b"key%d" % (number % 50), b"%d" % number)
    commit(log)
    passes = 0
    while (compaction := Compaction.begin(log, START_MS, keys_max=15)) is not None:
        compaction.run()
        assert compaction.finish()
        passes += 1
    assert passes > 3
    assert [r.offset for r in records_of(log)] == list(range(50, 100))


@pytest.mark.parametrize("far", [RELATIVE_OFFSET_MAX, 1 << 30])
def test_segments_whose_offsets_lie_too_far_apart_stay_apart(new_log, far):
    """An index has 31 bits for an offset: a segment's last one counts, not only its first."""
    log = new_log(**SETTINGS | {"index_interval_bytes": 0})
    put(log, b"a", b"1")
    second = 1 << 30
    log.skip_to(second)
    for offset in (second, second + far - 1, second + far):
        record = NewRecord(key=b"%d" % offset, value=b"v", timestamp=START_MS)
        log.append_as_follower(build_batch([record], base_offset=offset))
    commit(log)
    assert compact(log, START_MS)
    assert [segment.base_offset for segment in log.segments][:2] == [0, second]
    offsets = [0, second, second + far - 1, second + far]
    assert [record.offset for record in records_of(log)] == offsets


def test_neighbours_whose_offsets_can_be_named_together_become_one(new_log):
    log = new_log(**SETTINGS)
    put(log, b"a", b"1")
    log.skip_to(RELATIVE_OFFSET_MAX)
    record = NewRecord(key=b"b", value=b"v", timestamp=START_MS)
    log.append_as_follower(build_batch([record], base_offset=RELATIVE_OFFSET_MAX))
    commit(log)
    assert compact(log, START_MS)
    (compacted, active) = log.segments
    assert (compacted.base_offset, active.base_offset) == (0, RELATIVE_OFFSET_MAX + 1)
    assert [record.offset for record in records_of(log)] == [0, RELATIVE_OFFSET_MAX]


def test_nothing_is_cleaned_below_the_dirty_ratio_or_within_the_lag(new_log):
    log = new_log(**(SETTINGS | {"min_cleanable_dirty_ratio": 0.5, "min_compaction_lag_ms": 1000}))
    for _ in range(100):
        put(log, b"k", b"x" * 50)
    commit(log)
    assert not compact(log, START_MS + 999)
    assert compact(log, START_MS + 1000)
    for number in range(100):
        put(log, b"%d" % number, b"x" * 50)
    commit(log)
    assert compact(log, START_MS + 1000)
    put(log, b"k", b"x")
    commit(log)
    assert not compact(log, START_MS + 1000)


def test_the_first_record_of_a_segment_waits_no_longer_than_the_maximum_lag(new_log):
    settings = {"min_cleanable_dirty_ratio": 0.9, "max_compaction_lag_ms": 1000}
    log = new_log(**(SETTINGS | settings))
    for age in (0, 1):
        append(log, batch_of(b"x" * 50, key=b"k", base_timestamp=START_MS + age))
    commit(log)
    assert compact(log, START_MS + 1001)
    append(log, batch_of(b"x", key=b"k", base_timestamp=START_MS + 2000))
    append(log, batch_of(b"x", key=b"k", base_timestamp=START_MS + 2900))
    commit(log)
    assert not compact(log, START_MS + 3000)
    assert compact(log, START_MS + 3001), "by its first record, not by its newest"


def test_retention_during_a_pass_wins(new_log):
    log = new_log(**SETTINGS)
    for _ in range(40):
        put(log, b"k", b"x" * 100)
    commit(log)
    compaction = Compaction.begin(log, START_MS)
    log.delete_records_before(20)
    assert log.apply_retention(START_MS)
    kept = content(log)
    compaction.run()
    assert not compaction.finish()
    assert content(log) == kept


def damage_is_found(log):
    """A reader meets a changed bit of the first segment."""
    path = log.segments.first.path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert log.look_for_damage(log.segments.first, len(data) // 2)


def cut_below_the_candidates(log):
    log.truncate_to(log.segments.first.base_offset + 3)


def cut_within_the_last_candidate(log):
    log.truncate_to(log.segments.inactive[-1].base_offset + 3)


def cut_and_filled_again(log):
    cut_within_the_last_candidate(log)
    for _ in range(3):
        put(log, b"other", b"y")
    log.roll(START_MS)


@pytest.mark.parametrize(
    "change",
    [
        damage_is_found,
        cut_below_the_candidates,
        cut_within_the_last_candidate,
        cut_and_filled_again,
    ],
)
@pytest.mark.parametrize("is_before_the_read", [True, False])
def test_a_pass_over_what_is_no_longer_the_log_is_given_up(new_log, change, is_before_the_read):
    log = new_log(**SETTINGS, index_interval_bytes=0)
    for _ in range(40):
        put(log, b"k", b"x" * 100)
    commit(log)
    compaction = Compaction.begin(log, START_MS)
    if not is_before_the_read:
        compaction.run()
    change(log)
    sizes = [segment.size for segment in log.segments]
    if is_before_the_read:
        compaction.run()
    assert not compaction.finish()
    assert [segment.size for segment in log.segments] == sizes
    assert list(log.directory.glob("*.cleaned")) == []
    assert log.is_damaged == bool(log.damages) == (change is damage_is_found)


@pytest.mark.parametrize("crash_at", range(1, 9))
def test_a_crash_anywhere_in_the_swap_loses_nothing(new_log, folder, tmp_path, clock, crash_at):
    log = new_log(**SETTINGS)
    for number in range(60):
        put(log, b"key%d" % (number % 7), b"%d" % number)
    commit(log)
    newest = {r.key: r.offset for r in records_of(log)}
    log.flush()
    calls = 0
    real = os.rename
    copies = []

    def renaming(source, target):
        nonlocal calls
        calls += 1
        if calls == crash_at:
            shutil.copytree(folder, tmp_path / "crashed")
            copies.append(source)
        return real(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", renaming)
        patch.setattr(os, "replace", renaming)
        compact(log, START_MS)
    assert copies, "fewer renames than were expected"
    again = open_at(tmp_path / "crashed", clock, **SETTINGS)
    assert {r.key: r.offset for r in records_of(again)} == newest
    assert again.log_end_offset == 60
    offsets = [header.base_offset for header in headers_from(again, 0)]
    assert offsets == sorted(set(offsets))
    again.abandon()


def test_a_compacted_topic_takes_no_record_without_a_key(new_log):
    log = new_log(**SETTINGS)
    with pytest.raises(ApiError) as caught:
        append(log, batch_of(b"v"))
    assert caught.value.code is ErrorCode.INVALID_RECORD
    append(log, batch_of(b"v", key=b"k"))


def test_a_topics_own_compression_replaces_the_producers(new_log):
    log = new_log(compression_type="zstd")
    append(log, batch_of(*[b"value" * 20] * 50))
    (header,) = headers_from(log, 0)
    assert header.compression == Compression.ZSTD
    assert [r.value for r in records_of(log)] == [b"value" * 20] * 50


@pytest.mark.parametrize(
    ("codec", "levels"), [("gzip", [1, 9]), ("lz4", [1, 17]), ("zstd", [-100, 1, 19])]
)
def test_a_topics_own_compression_has_a_level(new_log, codec, levels):
    rng = random.Random(5)
    words = [rng.randbytes(rng.randrange(3, 9)) for _ in range(300)]
    values = [b" ".join(rng.choices(words, k=200)) for _ in range(40)]
    log = new_log(compression_type=codec)
    append(log, batch_of(*values))
    sizes = [log.size_bytes]
    for level in levels:
        setting = f"compression_{codec}_level"
        log.update_config(LogConfig(**{"compression_type": codec, setting: level}))
        append(log, batch_of(*values))
        sizes.append(log.size_bytes - sum(sizes))
    by_level = sizes[1:]
    assert by_level == sorted(set(by_level), reverse=True), "a higher level makes it smaller"
    assert [r.value for r in records_of(log)] == values * len(sizes)


@pytest.mark.parametrize(("codec", "level"), [("gzip", None), ("lz4", None), ("zstd", 3)])
def test_the_default_level_is_the_codecs_own(new_log, codec, level):
    config = LogConfig(compression_type=codec)
    assert config.compression_level == level
    record = NewRecord(key=None, value=b"some words " * 200, timestamp=START_MS)
    log = new_log(compression_type=codec)
    append(log, build_batch([record]))
    assert log.size_bytes == len(build_batch([record], compression=Compression[codec.upper()]))


def test_a_batch_is_as_small_as_the_topic_says_in_the_topics_own_compression(new_log):
    record = NewRecord(key=None, value=bytes(20_000), timestamp=START_MS)
    size = len(build_batch([record]))
    log = new_log(compression_type="uncompressed", max_message_bytes=size)
    append(log, build_batch([record], compression=Compression.GZIP))
    assert log.size_bytes == size
    record = NewRecord(key=None, value=bytes(20_001), timestamp=START_MS)
    with pytest.raises(ApiError) as caught:
        append(log, build_batch([record], compression=Compression.GZIP))
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert log.size_bytes == size


def malformed(place, **options):
    """Build a batch whose checksum holds, and whose records do not parse."""
    records = [NewRecord(key=b"k", value=b"malformed", timestamp=START_MS)] * 3
    batch = build_batch(records, **options)
    batch[place] ^= 0x7F
    seal(batch)
    return batch


@pytest.mark.parametrize("place", [HEADER_SIZE, HEADER_SIZE + 20, -1])
def test_a_batch_whose_records_do_not_parse_is_kept_as_it_is(new_log, place, capsys):
    # A topic that is not compacted takes batches by their headers.
    log = new_log(segment_bytes=1000)
    put(log, b"k", b"older")
    append(log, malformed(place))
    put(log, b"k", b"old")
    put(log, b"k", b"new")
    kept = content(log)[1]
    log.update_config(replace(log.config, **SETTINGS))
    for _ in range(3):
        commit(log)
        assert compact(log, START_MS)
        assert kept in content(log)
        put(log, b"k", b"newer")
    assert [r.value for b in content(log) if b != kept for r in iterate_records(b)] == [
        b"newer",
        b"newer",
    ]
    assert capsys.readouterr().out.count("records of a batch do not parse") == 1


def test_a_batch_with_timestamps_beyond_all_numbers_is_kept_as_it_is(new_log):
    log = new_log(segment_bytes=1000)
    records = [NewRecord(key=key, value=b"v", timestamp=START_MS + 9) for key in (b"k", b"l")]
    batch = build_batch([NewRecord(key=b"k", timestamp=START_MS), *records])
    batch[MAX_TIMESTAMP_POSITION - 8 : MAX_TIMESTAMP_POSITION] = b"\x7f" + b"\xff" * 7
    seal(batch)
    append(log, batch)
    put(log, b"k", b"v")
    kept = content(log)
    log.update_config(replace(log.config, **SETTINGS))
    commit(log)
    assert compact(log, START_MS)
    assert content(log) == kept


def test_an_aborted_batch_goes_whether_or_not_its_records_parse(new_log):
    log = new_log(segment_bytes=1000)
    append(log, malformed(HEADER_SIZE, **in_transaction(1)))
    append(log, malformed(HEADER_SIZE, **in_transaction(2)))
    end(log, 1, commit=False)
    end(log, 2, commit=True)
    put(log, b"k", b"v")
    log.update_config(replace(log.config, **SETTINGS))
    log.producers = type(log.producers)()  # which have expired
    commit(log)
    assert compact(log, START_MS)
    assert [h.producer_id for h in headers_from(log, 0) if not h.is_control] == [2, -1]


def test_timestamps_too_far_in_the_past_are_refused_where_the_topic_says_so(new_log):
    log = new_log(message_timestamp_before_max_ms=1000)
    append(log, batch_of(b"v", base_timestamp=START_MS - 1000))
    with pytest.raises(ApiError) as caught:
        append(log, batch_of(b"v", base_timestamp=START_MS - 1001))
    assert caught.value.code is ErrorCode.INVALID_TIMESTAMP


@pytest.mark.parametrize("timestamp", [-2, -1000, -(10**12), -(1 << 62), 0])
def test_timestamps_before_1970_are_as_far_in_the_past(new_log, timestamp):
    log = new_log(message_timestamp_before_max_ms=1000)
    with pytest.raises(ApiError) as caught:
        append(log, batch_of(b"v", base_timestamp=timestamp))
    assert caught.value.code is ErrorCode.INVALID_TIMESTAMP
    append(log, batch_of(b"v", base_timestamp=-1))  # it has none
    log.update_config(LogConfig())
    append(log, batch_of(b"v", base_timestamp=timestamp))


def test_a_record_that_is_newer_than_its_batch_says_is_refused_where_records_are_read(new_log):
    log = new_log(**SETTINGS)
    hour_ms = 60 * 60 * 1000
    for age, refused in ((hour_ms, False), (hour_ms + 1, True)):
        batch = batch_of(b"v", key=b"k", base_timestamp=START_MS + age, max_timestamp=START_MS)
        if not refused:
            append(log, batch)
            continue
        with pytest.raises(ApiError) as caught:
            append(log, batch)
        assert caught.value.code is ErrorCode.INVALID_TIMESTAMP
