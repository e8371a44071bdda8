"""Retention by time, by size and by DeleteRecords, and when files leave the disk."""

import pytest

from headrace_broker.log.epoch_cache import LeaderEpochCache
from headrace_broker.log.segments.removal import FileRemoval
from support.log import START_MS, append, batch_of, content, open_at


def filled(new_log, batches=20, **settings):
    log = new_log(segment_bytes=500, **settings)
    for number in range(batches):
        batch = batch_of(b"x" * 100, base_timestamp=START_MS + number * 1000)
        log.append_as_leader(batch, number // 7, now_ms=START_MS + number * 1000)
    log.high_watermark = log.log_end_offset
    return log


def test_segments_older_than_retention_ms_go_and_the_log_start_follows(new_log):
    log = filled(new_log, retention_ms=5000, segment_ms=1 << 40)
    freed = log.apply_retention(START_MS + 15_500)
    assert freed > 0
    assert log.log_start_offset == log.segments.first.base_offset == 10
    assert log.leader_epochs.entries[0] == (1, 10)
    assert content(log)[0][:8] == (10).to_bytes(8, "big")


def test_when_everything_is_old_the_active_segment_is_rolled_and_goes_too(new_log):
    log = filled(new_log, retention_ms=5000)
    log.apply_retention(START_MS + 1_000_000)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (20, 20, 0)
    assert append(log, batch_of(b"next")).first_offset == 20


def test_the_oldest_segments_go_while_the_rest_is_still_retention_bytes(new_log):
    log = filled(new_log, retention_ms=-1, retention_bytes=1000)
    log.apply_retention(START_MS + 1_000_000)
    assert 1000 <= log.size_bytes < 1000 + 500


def test_nothing_above_the_high_watermark_goes(new_log):
    log = new_log(segment_bytes=500, retention_ms=1)
    for _ in range(20):
        append(log, batch_of(b"x" * 100))
    log.high_watermark = 7
    log.apply_retention(START_MS + 1_000_000)
    assert log.log_start_offset == 6


def test_a_compacted_topic_keeps_old_segments(new_log):
    log = new_log(cleanup_policy="compact", segment_bytes=500, retention_ms=1, retention_bytes=1)
    for _ in range(20):
        append(log, batch_of(b"x" * 100, key=b"k"))
    log.high_watermark = 20
    assert log.apply_retention(START_MS + 1_000_000) == 0
    log.delete_records_before(11)
    assert log.apply_retention(START_MS + 1_000_000) > 0
    assert log.log_start_offset == 11
    assert log.segments.first.base_offset == 10


def test_files_are_renamed_at_once_and_removed_after_the_delay(new_log, folder):
    log = filled(new_log, retention_bytes=0, retention_ms=-1, file_delete_delay_ms=1000)
    log.apply_retention(START_MS)
    assert list(folder.glob("*.log.deleted"))
    log.apply_retention(START_MS + 999)
    assert list(folder.glob("*.deleted"))
    log.apply_retention(START_MS + 1000)
    assert not list(folder.glob("*.deleted"))


def test_an_active_segment_older_than_segment_ms_is_rolled(new_log):
    log = filled(new_log, batches=1, segment_ms=1000)
    log.apply_retention(START_MS + 1000)
    assert len(log.segments) == 1
    log.apply_retention(START_MS + 1001)
    assert len(log.segments) == 2


def test_old_records_do_not_roll_a_new_segment_at_every_pass(new_log, clock):
    log = new_log(segment_ms=60_000)
    day_ms = 24 * 60 * 60 * 1000
    for minute in range(5):
        clock.time_ms = now_ms = START_MS + minute * 10_000
        old = batch_of(b"v", base_timestamp=START_MS - day_ms + minute)
        log.append_as_leader(old, 0, now_ms=now_ms)
        log.apply_retention(now_ms)
    assert len(log.segments) == 1
    log.apply_retention(START_MS + 60_001)
    assert len(log.segments) == 2, "nothing is written any more, and it is old itself"


@pytest.mark.parametrize(("policy", "bases"), [("compact", [0, 2]), ("delete", [0])])
def test_a_compacted_segment_is_rolled_within_the_compaction_lag(new_log, policy, bases):
    log = new_log(cleanup_policy=policy, max_compaction_lag_ms=1000)
    for age in (0, 1000, 1001):
        append(log, batch_of(b"v", key=b"k", base_timestamp=START_MS + age))
    assert [segment.base_offset for segment in log.segments] == bases
    log.apply_retention(START_MS + 2002)
    assert len(log.segments) == len(bases) + (policy == "compact"), "an idle one as well"


def test_an_idle_segment_is_as_old_as_its_records_after_a_restart(new_log, folder, clock):
    settings = {"cleanup_policy": "compact", "max_compaction_lag_ms": 5000}
    log = new_log(**settings)
    append(log, batch_of(b"v", key=b"k"))
    log.close()
    clock.time_ms = START_MS + 6000
    again = open_at(folder, clock, **settings)
    again.apply_retention(clock.time_ms)
    assert len(again.segments) == 2
    again.abandon()


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(-1, (-1, -1)), (0, (0, 10)), (1, (1, 20)), (2, (1, 20)), (3, (3, 30)), (4, (4, 55))],
)
def test_epochs_end_where_the_next_one_begins(tmp_path, epoch, expected):
    cache = LeaderEpochCache(tmp_path, lambda: 55)
    for known, start in ((1, 10), (3, 20), (4, 30)):
        cache.assign(known, start)
    assert cache.end_offset_for(epoch) == expected
    assert LeaderEpochCache(tmp_path, lambda: 55).entries == cache.entries


def test_an_epoch_that_wrote_nothing_leaves_no_trace(tmp_path):
    cache = LeaderEpochCache(tmp_path, lambda: 10)
    cache.assign(1, 10)
    cache.assign(2, 10)
    cache.assign(1, 12)
    assert cache.entries == [(2, 10)]


def test_a_damaged_epoch_file_reads_as_none(tmp_path):
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n5\n1 2\n")
    assert LeaderEpochCache(tmp_path, lambda: 0).entries == []


def test_a_clock_that_is_set_back_does_not_keep_removed_files(tmp_path):
    removal = FileRemoval()
    hour = 3_600_000
    (tmp_path / "old.log").touch()
    removal.run_due(9 * hour)
    removal.schedule_files([tmp_path / "old.log"], 9 * hour + 60_000)
    assert removal.run_due(4 * hour) == 0
    assert removal.run_due(4 * hour + 59_999) == 0
    assert removal.run_due(4 * hour + 60_000) == 1
    assert list(tmp_path.iterdir()) == []
