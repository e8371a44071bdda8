"""`LogDirectories`: all `log.dirs` of one process (KIP-112), and where a replica's log goes.

Owns which directories are in use and which have failed. A directory that does not open while others
do is offline, like one that fails later; its replicas are unavailable until a new process opens it.
The directory of the metadata log must open.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from uuid import UUID

import structlog

from headrace_broker.log.checkpoints import TopicPartition
from headrace_broker.log.clock import Clock
from headrace_broker.log.descriptor_shortage import OutOfDescriptorsError
from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.log.future_log import forget_move, is_arrival, is_departure, superseded
from headrace_broker.log.log_directory import LogDirectory
from headrace_broker.log.meta_properties import (
    MetaPropertiesError,
    encode_uuid,
    known_cluster_id,
)
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.protocol.types import UNASSIGNED_DIRECTORY

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedDirectory:
    """A failed directory; without an id if it could not even be read at the start."""

    path: Path
    directory_id: UUID | None
    cause: str


class LogDirectories:
    """Opened once per process. Iterating yields the directories in use that hold partitions."""

    @classmethod
    def open(
        cls,
        paths: Sequence[Path],
        metadata_path: Path,
        *,
        node_id: int,
        cluster_id: str,
        clock: Clock,
    ) -> Self:
        """Open and lock every directory; all belong to one cluster, and each has its own id.

        Raises LogDirectoryFailure if the metadata log's directory does not open, or none for
        partitions does; and, for any directory, LogDirectoryInUseError, MetaPropertiesError,
        OutOfDescriptorsError.
        """
        every = list(dict.fromkeys((metadata_path, *paths)))
        named = cluster_id or next(filter(None, map(known_cluster_id, every)), "")
        opened: dict[Path, LogDirectory] = {}
        failed: dict[Path, FailedDirectory] = {}
        try:
            for path in every:
                try:
                    found = LogDirectory.open(path, node_id=node_id, cluster_id=named, clock=clock)
                except LogDirectoryFailure as failure:
                    if path == metadata_path:
                        raise
                    _log.critical("log directory is offline", path=str(path), exc_info=failure)
                    failed[path] = FailedDirectory(path=path, directory_id=None, cause=str(failure))
                    continue
                opened[path] = found
                named = found.cluster_id
            _check_ids(opened.values())
            if failed and not any(path in opened for path in paths):
                raise LogDirectoryFailure(paths[0], "no directory of log.dirs opens")
        except BaseException:
            for directory in opened.values():
                directory.abandon()
            raise
        return cls(paths, opened[metadata_path], opened, failed)

    def __init__(
        self,
        paths: Sequence[Path],
        metadata: LogDirectory,
        opened: dict[Path, LogDirectory],
        failed: dict[Path, FailedDirectory],
    ) -> None:
        """Not for callers: use `open`."""
        self.paths = tuple(paths)
        self.metadata = metadata
        """The directory of the metadata log; it may hold partitions, too."""
        self.failed = failed
        self._opened = opened
        marks = {
            directory.previous_broker_epoch if directory.was_clean else -1
            for directory in opened.values()
        }
        self.previous_broker_epoch = -1 if failed or len(marks) > 1 else marks.pop()
        """The broker epoch of the last clean shutdown; -1 unless every directory has it.

        A missing or new directory may mean that records are lost (KIP-966).
        """

    def __iter__(self) -> Iterator[LogDirectory]:
        for path in self.paths:
            directory = self._opened.get(path)
            if directory is not None:
                yield directory

    @property
    def cluster_id(self) -> str:
        """The cluster of these directories."""
        return self.metadata.cluster_id

    @property
    def was_clean(self) -> bool:
        """Whether no directory needs recovery."""
        return all(directory.was_clean for directory in self._opened.values())

    @property
    def is_one_of_several(self) -> bool:
        """Whether there is a choice of directory for a replica."""
        return len(self.paths) > 1

    @property
    def failed_ids(self) -> list[UUID]:
        """The ids of the failed directories, as far as they are known."""
        return [item.directory_id for item in self.failed.values() if item.directory_id is not None]

    # ---- replicas

    def at(self, path: Path) -> LogDirectory | None:
        """Return the directory in use at a path of log.dirs."""
        return self._opened.get(path) if path in self.paths else None

    def holder(self, log: PartitionLog) -> LogDirectory | None:
        """Return the directory that holds a log; None if it has failed."""
        return self._opened.get(log.directory.parent)

    def place(
        self,
        topic: str,
        partition: int,
        assigned: UUID,
        cordoned: Collection[str] = (),
        chosen: Path | None = None,
        *,
        is_new: bool = False,
    ) -> LogDirectory | None:
        """Return the directory of a replica's log, or the one in which to create it.

        An existing log decides; if several directories have one, the assigned directory does. A new
        log goes to its assigned directory, else to the one `chosen` by a client, else to the
        directory with the fewest logs that is not `cordoned` (a path).

        None if the log may be in a failed directory: a new log would pass for a replica without
        records. That of a replica that `is_new` cannot be there: this process saw it being assigned
        to this broker.
        """
        key = TopicPartition(topic, partition)
        usable = list(self)
        holders = self._holders(key)
        if self.failed and self._may_be_away(key, holders):
            return None
        named = [each for each in holders or usable if each.directory_id == assigned]
        if named or holders:
            return (named or holders)[0]
        # One that is assigned to no directory may be there, too: a former process ended before it
        # had told the controller where it had created it.
        if self.failed and not (is_new and assigned == UNASSIGNED_DIRECTORY):
            return None
        preferred = None if chosen is None else self.at(chosen)
        if preferred is not None:
            return preferred
        welcome = [each for each in usable if str(each.path) not in cordoned]
        return min(welcome or usable, key=lambda each: len(each.logs), default=None)

    def _folders(self, key: TopicPartition) -> list[LogDirectory]:
        return [each for each in self if each.has_folder(*key)]

    def _holders(self, key: TopicPartition) -> list[LogDirectory]:
        """The directories with a partition's log; only one of two between which it moved."""
        holders = self._folders(key)
        return holders if len(holders) <= 1 else _without(holders, superseded(holders, key), key)

    def _may_be_away(self, key: TopicPartition, holders: list[LogDirectory]) -> bool:
        """Whether a move may or may not have completed in a directory that has failed."""
        if not holders:
            return any(key in each.futures for each in self)
        return all(is_departure(each, key) for each in holders)

    def settle(self, topic: str, partition: int) -> None:
        """Finish removing the source of a move that a kill or a failed disk interrupted."""
        key = TopicPartition(topic, partition)
        holders = self._folders(key)
        if len(holders) > 1:
            left = superseded(holders, key)
            for each in left:
                each.delete(*key)
            holders = _without(holders, left, key)
        for each in holders if not self.failed else ():
            forget_move(each, key)

    # ---- failure

    def owner(self, path: Path) -> LogDirectory | None:
        """Return the directory in use that contains a file."""
        return next((self._opened[up] for up in (path, *path.parents) if up in self._opened), None)

    def is_failed(self, path: Path) -> bool:
        """Whether a file is in a failed directory."""
        return any(up in self.failed for up in (path, *path.parents))

    def fail(self, directory: LogDirectory, cause: str) -> None:
        """Take a directory offline: nothing more is written to it, and its lock is released."""
        self.failed[directory.path] = FailedDirectory(
            path=directory.path, directory_id=directory.directory_id, cause=cause
        )
        self._opened.pop(directory.path, None)
        directory.abandon()

    # ---- closing

    def close(self, *, broker_epoch: int) -> None:
        """Close every directory in use; one that fails here is not marked as closed cleanly."""
        for directory in list(self._opened.values()):
            try:
                directory.close(broker_epoch=broker_epoch)
            except LogDirectoryFailure as failure:
                _log.critical(
                    "log directory fails while it is closed",
                    path=str(directory.path),
                    exc_info=failure,
                )
                self.fail(directory, str(failure))
            except OutOfDescriptorsError as error:
                _log.error(
                    "log directory is not closed cleanly; the next start recovers it",
                    path=str(directory.path),
                    cause=str(error),
                )
                directory.abandon()


def _check_ids(directories: Collection[LogDirectory]) -> None:
    """Refuse a directory that is a copy of another, meta.properties included, as Kafka does."""
    paths: dict[UUID, Path] = {}
    for directory in directories:
        other = paths.setdefault(directory.directory_id, directory.path)
        if other != directory.path:
            raise MetaPropertiesError(
                f"{other} and {directory.path} have the same directory.id "
                f"{encode_uuid(directory.directory_id)}: one is a copy of the other"
            )


def _without(
    holders: list[LogDirectory], left: list[LogDirectory], key: TopicPartition
) -> list[LogDirectory]:
    """The directories with a partition's log, without those left over from moves."""
    rest = [each for each in holders if each not in left]
    if len(holders) > 1:
        # A copy whose rename failed never arrived: the original log stayed in use.
        rest = [each for each in rest if not is_arrival(each, key)] or rest
    return rest
