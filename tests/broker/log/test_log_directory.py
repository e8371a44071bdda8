"""A log directory: its lock, its identity, its checkpoints, clean and unclean ends."""

import json
from dataclasses import replace

import pytest

from headrace_broker.log import log_directory
from headrace_broker.log.checkpoints import read_offsets
from headrace_broker.log.config import LogConfig
from headrace_broker.log.log_directory import LogDirectory, LogDirectoryInUseError
from headrace_broker.log.meta_properties import MetaPropertiesError, decode_uuid, encode_uuid
from support.log import append, batch_of, open_logs

CONFIG = LogConfig()


@pytest.fixture
def open_directory(tmp_path, clock):
    opened = []

    def open_it(node_id=1, cluster_id=""):
        path = tmp_path / "data"
        directory = LogDirectory.open(path, node_id=node_id, cluster_id=cluster_id, clock=clock)
        opened.append(directory)
        return directory

    yield open_it
    for directory in opened:
        directory.abandon()


def test_identity_is_kept_and_checked(open_directory):
    first = open_directory(cluster_id="4L6g3nShT-eMCtK--X86sw")
    identity = first.directory_id
    first.close()
    again = open_directory()
    assert again.directory_id == identity
    assert again.cluster_id == "4L6g3nShT-eMCtK--X86sw"
    again.close()
    for arguments in ({"node_id": 2}, {"cluster_id": "another"}):
        with pytest.raises(MetaPropertiesError):
            open_directory(**arguments)
    open_directory()


def test_a_second_process_is_kept_out(open_directory):
    open_directory()
    with pytest.raises(LogDirectoryInUseError):
        open_directory()


def test_a_clean_end_is_distinguished_from_a_kill(open_directory):
    directory = open_directory()
    assert not directory.was_clean
    directory.close(broker_epoch=42)
    marker = directory.path / ".kafka_cleanshutdown"
    assert json.loads(marker.read_text()) == {"version": 0, "brokerEpoch": 42}
    again = open_directory()
    assert (again.was_clean, again.previous_broker_epoch) == (True, 42)
    again.abandon()
    assert not open_directory().was_clean


def test_that_the_mark_of_a_clean_end_is_gone_is_on_disk_when_a_process_has_begun(
    open_directory, monkeypatch
):
    """Else a power cut brings it back: what it tore would be taken for whole."""
    open_directory().close()
    synced, sync = [], log_directory.sync_directory

    def note(path):
        synced.append((path / ".kafka_cleanshutdown").exists())
        sync(path)

    monkeypatch.setattr(log_directory, "sync_directory", note)
    assert open_directory().was_clean
    assert synced == [False]


def test_logs_come_back_with_offsets_start_and_high_watermark(open_directory):
    directory = open_directory()
    log = directory.create("dashed-topic", 3, CONFIG)
    for _ in range(5):
        append(log, batch_of(b"v"))
    log.high_watermark = 4
    log.delete_records_before(2)
    directory.close()
    again = open_directory()
    open_logs(again, CONFIG)
    (((topic, partition), log),) = again.logs.items()
    assert (topic, partition) == ("dashed-topic", 3)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (2, 4, 5)
    assert log.recovery_point == 5


def test_delete_records_and_flushes_survive_a_kill_once_checkpointed(open_directory):
    directory = open_directory()
    log = directory.create("t", 0, CONFIG)
    for _ in range(5):
        append(log, batch_of(b"v"))
    log.high_watermark = 5
    log.delete_records_before(3)
    log.flush()
    directory.checkpoint()
    directory.abandon()
    again = open_directory()
    open_logs(again, CONFIG)
    log = again.logs["t", 0]
    assert (log.log_start_offset, log.recovery_point, log.log_end_offset) == (3, 5, 5)


def test_deleted_partitions_are_renamed_at_once_and_removed_later(open_directory):
    directory = open_directory()
    directory.create("t" * 249, 0, CONFIG)
    directory.create("kept", 0, CONFIG)
    folder = directory.delete("t" * 249, 0)
    assert folder.exists()
    assert folder.name.endswith("-delete")
    assert directory.remove_deleted() == 1
    assert not folder.exists()
    directory.create("kept", 1, CONFIG)
    directory.delete("kept", 0)
    directory.close()
    again = open_directory()
    open_logs(again, CONFIG)
    assert list(again.logs) == [("kept", 1)]


def test_a_partition_knows_its_topics_id(open_directory):
    directory = open_directory()
    topic_id = decode_uuid("MgPJxT4gQCOz9iz2yvBFVQ")
    directory.create("t", 0, CONFIG, topic_id=topic_id)
    assert directory.topic_id("t", 0) == topic_id
    assert directory.topic_id("missing", 0) is None
    assert encode_uuid(topic_id) == "MgPJxT4gQCOz9iz2yvBFVQ"


def test_settings_are_read_by_kafkas_names():
    config = LogConfig.from_settings(
        {"retention.ms": "5", "cleanup.policy": "compact,delete", "preallocate": "true", "x": "y"}
    )
    assert (config.retention_ms, config.preallocate) == (5, True)
    assert config.compacts
    assert config.deletes
    assert LogConfig.from_settings({"message.timestamp.type": "LogAppendTime"}).stamps_append_time


def points(directory, name):
    offsets = read_offsets(directory.path / name)
    return {f"{tp.topic} {tp.partition}": at for tp, at in offsets.items()}


@pytest.mark.parametrize(
    "name", ["recovery-point-offset", "replication-offset", "log-start-offset", "cleaner-offset"]
)
def test_no_checkpoint_on_disk_stays_above_a_truncation(open_directory, name):
    directory = open_directory()
    log = directory.create("events", 0, replace(CONFIG, cleanup_policy=frozenset({"compact"})))
    for _ in range(5):
        append(log, batch_of(b"value", b"value", key=b"k"))
    log.flush()
    log.high_watermark = log.cleaner_offset = log.delete_records_before(10)
    directory.checkpoint()
    assert points(directory, f"{name}-checkpoint") == {"events 0": 10}
    log.truncate_to(5)
    # What is appended now is on no disk yet, and recovery must not take it on trust.
    append(log, batch_of(b"other", key=b"k"))
    assert points(directory, f"{name}-checkpoint") == {"events 0": 4}
    log.truncate_fully_and_start_at(2)
    assert points(directory, f"{name}-checkpoint") == {"events 0": 2}


def test_a_torn_batch_after_a_truncation_is_recovered_from(open_directory):
    directory = open_directory()
    log = directory.create("events", 0, CONFIG)
    for _ in range(10):
        append(log, batch_of(b"value"))
    log.flush()
    directory.checkpoint()
    log.truncate_to(4)
    append(log, batch_of(b"kept"))
    end = log.segments.active.size
    append(log, batch_of(b"torn"))
    path = log.segments.active.path
    directory.abandon()
    with path.open("r+b") as file:  # the size reached the disk, the bytes did not
        file.seek(end + 30)
        file.write(bytes(path.stat().st_size - end - 30))
    again = open_directory()
    open_logs(again, CONFIG)
    assert again.logs["events", 0].log_end_offset == 5


def test_a_recreated_partition_inherits_no_checkpoint(open_directory):
    directory = open_directory()
    log = directory.create("events", 0, CONFIG)
    for _ in range(10):
        append(log, batch_of(b"value"))
    log.delete_records_before(7)
    log.high_watermark = 10
    log.flush()
    directory.checkpoint()
    directory.delete("events", 0)
    directory.create("events", 0, CONFIG)
    directory.abandon()  # a kill before the next checkpoint
    again = open_directory()
    open_logs(again, CONFIG)
    log = again.logs["events", 0]
    for _ in range(10):
        append(log, batch_of(b"other"))
    assert (log.log_start_offset, log.recovery_point, log.high_watermark) == (0, 0, 0)


@pytest.mark.parametrize("bytes_left", [0, 80])
def test_a_log_that_lost_deleted_records_begins_where_they_ended(open_directory, bytes_left):
    """As Kafka's: an offset below would be given again, to a record that is deleted then."""
    directory = open_directory()
    log = directory.create("events", 0, CONFIG)
    for _ in range(3):
        append(log, batch_of(b"x"))
    path = log.segments.active.path
    log.delete_records_before(3)
    directory.checkpoint_log_start_offsets()
    directory.abandon()  # the power fails before the records are on disk
    with path.open("r+b") as file:
        file.truncate(bytes_left)
    for count in range(2):
        again = open_directory()
        log = again.create("events", 0, CONFIG)
        facts = (log.log_start_offset, log.high_watermark, log.log_end_offset)
        assert facts == (3, 3, 3 + count)
        assert append(log, batch_of(b"new")).first_offset == 3 + count
        log.flush()
        again.abandon()


def test_checkpoints_drop_what_was_deleted(open_directory):
    directory = open_directory()
    append(directory.create("events", 0, CONFIG), batch_of(b"value"))
    directory.checkpoint()
    directory.delete("events", 0)
    directory.checkpoint()
    assert points(directory, "recovery-point-offset-checkpoint") == {}


def test_a_stop_before_a_torn_log_was_opened_does_not_vouch_for_it(open_directory):
    directory = open_directory()
    for topic in ("events", "others"):
        append(directory.create(topic, 0, CONFIG), batch_of(b"value"))
        append(directory.create(topic, 0, CONFIG), batch_of(b"torn"))
    paths = [log.segments.active.path for log in directory.logs.values()]
    directory.abandon()
    for path in paths:
        path.write_bytes(path.read_bytes()[:-3])
    for _ in range(2):  # stopped as it should be, but before it got to the logs
        directory = open_directory()
        directory.close()
    directory = open_directory()
    assert directory.was_clean
    assert directory.create("events", 0, CONFIG).log_end_offset == 1
    directory.close()
    assert open_directory().create("others", 0, CONFIG).log_end_offset == 1


def test_producers_are_remembered_at_a_flush_so_that_a_kill_leaves_little_to_read(open_directory):
    directory = open_directory()
    log = directory.create("t", 0, CONFIG)
    for number in range(1100):
        append(log, batch_of(b"x", producer_id=7, producer_epoch=0, base_sequence=number))
        if number in {999, 1049}:
            log.snapshot_producers()
    assert [path.name for path in log.directory.glob("*.snapshot")] == [f"{1000:020d}.snapshot"]
    log.flush()
    directory.checkpoint()
    directory.abandon()
    again = open_directory()
    assert again.recovery("t", 1, CONFIG) is None
    recovery = again.recovery("t", 0, CONFIG)
    assert recovery is not None
    log = again.create("t", 0, CONFIG, recovered=recovery())
    assert again.recovery("t", 0, CONFIG) is None
    assert log.log_end_offset == 1100
    retry = batch_of(b"x", producer_id=7, producer_epoch=0, base_sequence=1099)
    assert append(log, retry).is_duplicate


def test_a_high_watermark_below_the_log_start_is_no_bound_for_retention(open_directory, clock):
    directory = open_directory()
    config = LogConfig(segment_bytes=200, file_delete_delay_ms=0)
    log = directory.create("events", 0, config)
    for _ in range(6):
        append(log, batch_of(b"x" * 100))
    log.high_watermark = 2
    directory.checkpoint()
    log.high_watermark = 6
    log.delete_records_before(6)
    directory.checkpoint_log_start_offsets()
    directory.abandon()
    log = open_directory().create("events", 0, config)
    assert (log.log_start_offset, log.high_watermark) == (6, 6)
    assert log.apply_retention(clock.now_ms()) > 0
    assert log.segments.first.base_offset >= 5


def test_deleted_records_stay_away_from_a_power_cut_after_retention(
    open_directory, clock, monkeypatch
):
    directory = open_directory()
    log = directory.create("events", 0, LogConfig(segment_bytes=200, file_delete_delay_ms=0))
    for _ in range(6):
        append(log, batch_of(b"x" * 100))
    log.high_watermark = 6
    starts = directory.path / "log-start-offset-checkpoint"
    synced = []

    def sync(path):
        synced.append((path, points(directory, starts.name)))

    monkeypatch.setattr(log_directory, "sync_directory", sync)
    log.delete_records_before(5)
    directory.checkpoint()
    assert log.apply_retention(clock.now_ms()) > 0
    assert log.segments.first.base_offset == 5
    assert not synced
    directory.checkpoint()
    directory.checkpoint()
    # Until the removal of the segments is on disk, the checkpoint says where the log begins.
    assert synced == [(log.directory, {"events 0": 5})]
    assert points(directory, starts.name) == {}


def test_a_high_watermark_that_a_power_cut_changed_is_not_believed(open_directory):
    directory = open_directory()
    log = directory.create("events", 0, CONFIG)
    for _ in range(3):
        append(log, batch_of(b"value"))
    log.high_watermark = 1
    directory.checkpoint_high_watermarks()  # without an fsync
    directory.abandon()
    marks = directory.path / "replication-offset-checkpoint"
    marks.write_text(marks.read_text().replace("events 0 1", "events 0 3"))
    again = open_directory()
    open_logs(again, CONFIG)
    assert again.logs["events", 0].high_watermark == 0


def test_a_log_directory_that_was_given_up_holds_no_logs(open_directory):
    directory = open_directory()
    directory.create("t", 0, CONFIG)
    directory.abandon()
    assert not directory.logs
