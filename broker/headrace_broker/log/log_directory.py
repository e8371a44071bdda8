"""`LogDirectory`: one of `log.dirs`, with its lock, its identity, its checkpoints and its logs.

Owns the folder's own files: `.lock`, `meta.properties`, the offset checkpoints and the marker of
a clean shutdown. A partition's folder belongs to its `PartitionLog`.
"""

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Self

import structlog

from headrace_broker.log.checkpoints import (
    TopicPartition,
    read_offsets,
    write_checkpoint,
    write_offsets,
)
from headrace_broker.log.clock import Clock
from headrace_broker.log.config import LogConfig
from headrace_broker.log.descriptor_shortage import OutOfDescriptorsError
from headrace_broker.log.files import (
    as_a_whole,
    failing_the_directory,
    names_in,
    open_file,
    read_file,
    remove_quietly,
    rename_durably,
    replace_file,
    sync_directory,
    sync_file,
)
from headrace_broker.log.meta_properties import (
    MetaProperties,
    decode_uuid,
    encode_uuid,
    read_meta_properties,
)
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.log.scrub import ScrubTotals
from headrace_broker.protocol.types import Offset, TopicId

LOCK_NAME: Final = ".lock"
CLEAN_SHUTDOWN_NAME: Final = ".kafka_cleanshutdown"
RECOVERY_POINT_NAME: Final = "recovery-point-offset-checkpoint"
LOG_START_NAME: Final = "log-start-offset-checkpoint"
HIGH_WATERMARK_NAME: Final = "replication-offset-checkpoint"
CLEANER_NAME: Final = "cleaner-offset-checkpoint"
PARTITION_METADATA_NAME: Final = "partition.metadata"
DELETE_SUFFIX: Final = "-delete"
STRAY_SUFFIX: Final = "-stray"
FUTURE_SUFFIX: Final = "-future"
_FOLDER_NAME_MAX: Final = 249
_QUORUM_TOPIC: Final = "__cluster_metadata"  # its log is checked completely at every start
_log = structlog.get_logger(__name__)


class LogDirectoryInUseError(Exception):
    """Another process holds the directory's lock."""


class LogDirectory:
    """Opened once per process; `close` marks a clean shutdown."""

    @property
    def is_abandoned(self) -> bool:
        """Whether the directory was taken offline: nothing more may be written to it."""
        return self._lock < 0

    @classmethod
    def open(cls, path: Path, *, node_id: int, cluster_id: str, clock: Clock) -> Self:
        """Lock a directory, create it if needed, and check that it belongs to this node.

        Raises LogDirectoryInUseError, MetaPropertiesError, LogDirectoryFailure and
        OutOfDescriptorsError. With an empty `cluster_id`, the directory's own one is used, or a new
        one is generated.
        """
        with failing_the_directory(path):
            _make_durably(path)
            lock = open_file(path / LOCK_NAME, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise LogDirectoryInUseError(f"{path} is locked by another process") from error
        try:
            with failing_the_directory(path):
                meta = read_meta_properties(path, node_id=node_id, cluster_id=cluster_id)
                return cls(path, meta, lock, clock)
        except BaseException:
            os.close(lock)
            raise

    def __init__(self, path: Path, meta: MetaProperties, lock: int, clock: Clock) -> None:
        """Not for callers: use `open`."""
        self.path = path
        self.node_id = meta.node_id
        self.cluster_id = meta.cluster_id
        self.directory_id = meta.directory_id
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self._clock = clock
        self._lock = lock
        self._recovery_points = read_offsets(path / RECOVERY_POINT_NAME)
        self._log_starts = read_offsets(path / LOG_START_NAME)
        self._high_watermarks = read_offsets(path / HIGH_WATERMARK_NAME)
        self._cleaner_offsets = read_offsets(path / CLEANER_NAME)
        self._has_unwritten_marks = False
        """Whether a checkpoint of high watermarks was not written for lack of a descriptor."""
        self._deleted: set[TopicPartition] = set()
        """Deleted partitions that checkpoints on disk still name; the next ones leave them out."""
        self.was_clean = False
        self.scrub = ScrubTotals()
        self.previous_broker_epoch = -1
        self._unrecovered: set[str] = set()
        """Folders that a kill may have torn and that no process has opened since."""
        self.futures = self._future_folders()
        """Copies that a former process left unfinished: (topic, partition) to their folders."""
        self._take_clean_marker()

    def _take_clean_marker(self) -> None:
        """Read the marker and remove it durably: from now on a kill counts as unclean."""
        marker = self.path / CLEAN_SHUTDOWN_NAME
        try:
            content = json.loads(read_file(marker) or b"{}")
            self.previous_broker_epoch = int(content.get("brokerEpoch", -1))
            self._unrecovered = set(content.get("unrecovered", ()))
        except FileNotFoundError:
            self._unrecovered = {folder.name for folder in self.partition_folders().values()}
            return
        except (ValueError, AttributeError, TypeError):
            self._unrecovered = {folder.name for folder in self.partition_folders().values()}
        self.was_clean = True
        with as_a_whole(self.path):
            remove_quietly(marker)
            sync_directory(self.path)

    # ---- partitions

    def partition_folders(self) -> dict[TopicPartition, Path]:
        """Every `topic-partition` folder."""
        folders: dict[TopicPartition, Path] = {}
        for name in names_in(self.path):
            topic, separator, index = name.rpartition("-")
            if topic == _QUORUM_TOPIC or not (separator and topic and index.isdigit()):
                continue
            if (self.path / name).is_dir():
                folders[TopicPartition(topic, int(index))] = self.path / name
        return folders

    def recovery(
        self, topic: str, partition: int, config: LogConfig
    ) -> Callable[[], PartitionLog] | None:
        """Return the long part of opening a log that a kill may have torn; None for other logs.

        It touches only the log's own files and may run in another thread; pass its result to
        `create`.
        """
        key = TopicPartition(topic, partition)
        if key in self.logs or not self._may_be_torn(key):
            return None
        return self._opening(key, config)

    def create(
        self,
        topic: str,
        partition: int,
        config: LogConfig,
        *,
        topic_id: TopicId | None = None,
        recovered: PartitionLog | None = None,
    ) -> PartitionLog:
        """Open a partition's log, creating its folder if there is none.

        Raises OutOfDescriptorsError: then the same may be tried again.
        """
        key = TopicPartition(topic, partition)
        known = self.logs.get(key)
        if known is not None:
            return known
        with failing_the_directory(self.path / str(key)):
            return self._create(key, config, topic_id, recovered)

    def _create(
        self,
        key: TopicPartition,
        config: LogConfig,
        topic_id: TopicId | None,
        recovered: PartitionLog | None,
    ) -> PartitionLog:
        folder = self.path / str(key)
        if not folder.exists():
            with as_a_whole(folder):
                self._forget(key)
                log = self._adopt(key, self._opening(key, config)(), topic_id)
                sync_directory(self.path)
                return log
        log = recovered or self._opening(key, config)()
        try:
            return self._adopt(key, log, topic_id)
        except OutOfDescriptorsError:
            log.abandon()
            raise

    def unopened(self) -> list[TopicPartition]:
        """Return the partitions that have a folder here and no open log."""
        with failing_the_directory(self.path):
            return sorted(key for key in self.partition_folders() if key not in self.logs)

    def has_folder(self, topic: str, partition: int) -> bool:
        """Whether this directory has a partition's log."""
        with failing_the_directory(self.path):
            return (self.path / f"{topic}-{partition}").is_dir()

    def topic_id(self, topic: str, partition: int) -> TopicId | None:
        """Return the topic id that a partition's folder was created for."""
        return self._read_topic_id(self.path / f"{topic}-{partition}")

    def _read_topic_id(self, folder: Path) -> TopicId | None:
        path = folder / PARTITION_METADATA_NAME
        try:
            with failing_the_directory(path):
                text = read_file(path).decode() if path.exists() else ""
            lines = dict(line.split(": ", 1) for line in text.splitlines())
            return TopicId(decode_uuid(lines["topic_id"]))
        except (KeyError, ValueError):
            return None

    def delete(self, topic: str, partition: int) -> Path:
        """Delete a partition: rename its folder now; `remove_deleted` frees the space later.

        Raises OutOfDescriptorsError: then it has its new name, which may not be durable.
        """
        return self._take_away(topic, partition, DELETE_SUFFIX)

    def set_aside(self, topic: str, partition: int) -> Path:
        """Rename the folder of a replica that this broker must not delete."""
        return self._take_away(topic, partition, STRAY_SUFFIX)

    def _take_away(self, topic: str, partition: int, suffix: str) -> Path:
        key = TopicPartition(topic, partition)
        log = self.logs.pop(key, None)
        if log is not None:
            log.abandon()
        self._deleted.add(key)
        self._unrecovered.discard(str(key))
        # Kafka's name, with the topic cut short if the file name would be too long.
        ending = f"-{partition}.{uuid.uuid4().hex}{suffix}"
        target = self.path / (topic[: _FOLDER_NAME_MAX - len(ending)] + ending)
        rename_durably(self.path / str(key), target)
        return target

    # ---- moves between directories (`future_log.py`)

    @staticmethod
    def future_name(key: TopicPartition, move: str) -> str:
        """Kafka's name for the folder of an unfinished copy."""
        return f"{key}.{move}{FUTURE_SUFFIX}"

    def _future_folders(self) -> dict[TopicPartition, list[Path]]:
        found: dict[TopicPartition, list[Path]] = {}
        for name in names_in(self.path):
            if name.endswith(FUTURE_SUFFIX):
                topic, _, index = name.rpartition(".")[0].rpartition("-")
                if topic and index.isdigit():
                    key = TopicPartition(topic, int(index))
                    found.setdefault(key, []).append(self.path / name)
        return found

    def take_futures(self, key: TopicPartition, topic_id: TopicId | None = None) -> bool:
        """Remove unfinished copies of a former process; return whether one was of this topic."""
        with failing_the_directory(self.path):
            folders = self.futures.get(key, [])
            is_wanted = topic_id in [self._read_topic_id(folder) for folder in folders]
            self.futures.pop(key, None)
            for folder in folders:
                self.discard_future(folder)
        return is_wanted

    def create_future(
        self,
        key: TopicPartition,
        move: str,
        config: LogConfig,
        *,
        topic_id: TopicId,
        log_start_offset: Offset,
    ) -> PartitionLog:
        """Create an empty log that belongs to no partition yet; set aside a stray in its place."""
        folder = self.path / self.future_name(key, move)
        with failing_the_directory(folder):
            if self.has_folder(*key):
                self.set_aside(*key)
            self._forget(key)
            log = PartitionLog.open(
                folder, config, clock=self._clock, log_start_offset=log_start_offset
            )
            _write_topic_id(folder, topic_id)
        return log

    def discard_future(self, folder: Path) -> None:
        """Delete a cancelled copy's folder; `remove_deleted` frees the space later."""
        name = folder.name.removesuffix(FUTURE_SUFFIX) + DELETE_SUFFIX
        with failing_the_directory(folder):
            folder.replace(self.path / name)

    def checkpoint_moved(self, key: TopicPartition, log: PartitionLog) -> None:
        """Make durable what a copy's batches lack, before it becomes the partition's log."""
        if log.log_start_offset > log.segments.first.base_offset:
            self._log_starts[key] = log.log_start_offset
            write_offsets(self.path / LOG_START_NAME, self._log_starts)

    def adopt(self, key: TopicPartition, log: PartitionLog) -> None:
        """Register a log whose folder now has a partition's name."""
        log.before_truncation = partial(self._lower_checkpoints, key)
        self._high_watermarks[key] = log.high_watermark
        self._recovery_points[key] = log.recovery_point
        self._cleaner_offsets[key] = log.cleaner_offset
        self.logs[key] = log

    def remove_deleted(self) -> int:
        """Remove the folders of deleted partitions; return their number. Safe in another thread."""
        with failing_the_directory(self.path):
            doomed = [
                self.path / name for name in names_in(self.path) if name.endswith(DELETE_SUFFIX)
            ]
        for folder in doomed:
            shutil.rmtree(folder, ignore_errors=True)
        return len(doomed)

    def high_watermark(self, topic: str, partition: int) -> Offset:
        """Return the checkpointed high watermark, or 0."""
        return Offset(self._high_watermarks.get(TopicPartition(topic, partition), 0))

    def _opening(self, key: TopicPartition, config: LogConfig) -> Callable[[], PartitionLog]:
        folder = self.path / str(key)
        opening = partial(
            PartitionLog.open,
            folder,
            config,
            clock=self._clock,
            recovery_point=self._recovery_points.get(key, 0),
            was_clean=not self._may_be_torn(key),
            log_start_offset=self._log_starts.get(key, 0),
        )

        def run() -> PartitionLog:
            with failing_the_directory(folder):
                return opening()

        return run

    def _adopt(
        self, key: TopicPartition, log: PartitionLog, topic_id: TopicId | None
    ) -> PartitionLog:
        self._lower_checkpoints(key, log.log_end_offset)
        log.before_truncation = partial(self._lower_checkpoints, key)
        log.cleaner_offset = Offset(self._cleaner_offsets.get(key, 0))
        # What was deleted since the checkpoint was committed.
        log.high_watermark = max(self._high_watermarks.get(key, 0), log.log_start_offset)
        log.recheck_markers()
        if topic_id is not None and self.topic_id(*key) != topic_id:
            _write_topic_id(log.directory, topic_id)
        self._unrecovered.discard(str(key))
        self.logs[key] = log
        return log

    def _may_be_torn(self, key: TopicPartition) -> bool:
        """Whether the last process that wrote to a folder did not close it."""
        return str(key) in self._unrecovered

    # ---- checkpoints

    def _lower_checkpoints(self, key: TopicPartition, offset: int) -> None:
        """Lower every checkpoint on disk to `offset` before records are appended there.

        Otherwise recovery after a power cut would trust bytes that were written after a truncation
        and are covered by no fsync; a leader would serve them as committed, or hide or not compact
        what was appended below.
        """
        for offsets, name in self._checkpoints():
            if offsets.get(key, 0) > offset:
                # First on disk: without a descriptor for it, this is tried again.
                write_offsets(self.path / name, {**offsets, key: offset})
                offsets[key] = offset

    def _checkpoints(self) -> tuple[tuple[dict[TopicPartition, int], str], ...]:
        return (
            (self._recovery_points, RECOVERY_POINT_NAME),
            (self._log_starts, LOG_START_NAME),
            (self._high_watermarks, HIGH_WATERMARK_NAME),
            (self._cleaner_offsets, CLEANER_NAME),
        )

    def _forget(self, key: TopicPartition) -> None:
        """Remove a deleted partition from the checkpoints before its name is used again."""
        self._deleted.discard(key)
        for offsets, name in self._checkpoints():
            if offsets.get(key, 0):
                write_offsets(self.path / name, {tp: at for tp, at in offsets.items() if tp != key})
            offsets.pop(key, None)

    def checkpoint(self) -> None:
        """Write all checkpoints: periodically, after flushes, and after DeleteRecords."""
        if self.is_abandoned:
            return
        logs = self.logs
        self._has_unwritten_marks = True
        for key in self._deleted:
            for offsets, _ in self._checkpoints():
                offsets.pop(key, None)
        self._deleted.clear()
        for key, log in logs.items():
            self._recovery_points[key] = log.recovery_point
            self._high_watermarks[key] = log.high_watermark
            self._cleaner_offsets[key] = log.cleaner_offset
        write_offsets(self.path / RECOVERY_POINT_NAME, self._recovery_points)
        write_offsets(self.path / HIGH_WATERMARK_NAME, self._high_watermarks)
        self._has_unwritten_marks = False
        compacted = _only(self._cleaner_offsets, logs, lambda log: log.config.compacts)
        write_offsets(self.path / CLEANER_NAME, compacted)
        self.checkpoint_log_start_offsets()

    def checkpoint_high_watermarks(self) -> None:
        """Write the high watermarks if one has moved: a restarted leader serves from there.

        Not synced: with an old checkpoint, or none, a starting leader only waits for the followers.
        """
        marks = {key: log.high_watermark for key, log in self.logs.items()}
        if self._has_unwritten_marks or any(
            self._high_watermarks.get(key) != mark for key, mark in marks.items()
        ):
            self._high_watermarks.update(marks)
            self._has_unwritten_marks = True
            lines = (f"{tp.topic} {tp.partition} {at}" for tp, at in self._high_watermarks.items())
            write_checkpoint(self.path / HIGH_WATERMARK_NAME, lines, durable=False)
            self._has_unwritten_marks = False

    def checkpoint_log_start_offsets(self) -> None:
        """Make DeleteRecords durable: the log start offset within the first segment."""
        starts = dict(self._log_starts)
        for key, log in self.logs.items():
            if log.log_start_offset > log.segments.first.base_offset:
                starts[key] = log.log_start_offset
            elif starts.pop(key, 0):
                # Otherwise a power cut could bring the removed segments back without their entry.
                sync_directory(log.directory)
        write_offsets(self.path / LOG_START_NAME, starts)
        self._log_starts = starts

    def close(self, *, broker_epoch: int = -1) -> None:
        """Close every log, write the checkpoints, mark the shutdown as clean, release the lock.

        Folders that this process has not opened are not marked as clean.
        """
        for log in self.logs.values():
            log.close()
        self.checkpoint()
        content: dict[str, object] = {"version": 0, "brokerEpoch": broker_epoch}
        if self._unrecovered:
            content["unrecovered"] = sorted(self._unrecovered)
        replace_file(self.path / CLEAN_SHUTDOWN_NAME, json.dumps(content).encode())
        self.abandon()

    def abandon(self) -> None:
        """Release everything without writing to disk: after a failure, or as a kill would."""
        for log in self.logs.values():
            log.abandon()
        self.logs.clear()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _write_topic_id(folder: Path, topic_id: TopicId) -> None:
    text = f"version: 0\ntopic_id: {encode_uuid(topic_id)}\n"
    replace_file(folder / PARTITION_METADATA_NAME, text.encode(), durable=False)
    # Before the first append: with a damaged topic id the records would be set aside as a stray's.
    sync_file(folder / PARTITION_METADATA_NAME)


def _make_durably(path: Path) -> None:
    """Create a directory durably, so that a power cut does not remove it with its contents."""
    if path.is_dir():
        return
    _make_durably(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)


def _only(
    offsets: dict[TopicPartition, int],
    logs: dict[TopicPartition, PartitionLog],
    wanted: Callable[[PartitionLog], bool],
) -> dict[TopicPartition, int]:
    """Leave out the entries that an open log does not need."""
    return {key: offset for key, offset in offsets.items() if key not in logs or wanted(logs[key])}
