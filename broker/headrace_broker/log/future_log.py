"""`FutureLog`: the copy of a log in another log directory, until it replaces the log.

Owns the folder `topic-partition.<id>-future` (Kafka's name), the order of copying, and the swap. A
copy consists of whole batches, and is made in steps that may run in another thread. Until the swap
it is not a replica. If the process is killed, the next process finds the folder, knows that the
move was wanted, and copies from the beginning.

The swap is one rename. Two files make it atomic under a kill at any point: the old log's folder has
a file `leaving` with the move's id, the copy's folder has `arriving` with the same id. If a start
finds both folders under the partition's name, the one that arrived is the newer (`superseded`).
"""

import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace_broker.log.batches import OFFSET_AND_LENGTH
from headrace_broker.log.checkpoints import TopicPartition
from headrace_broker.log.files import (
    LogDirectoryFailure,
    as_a_whole,
    failing_the_directory,
    open_file,
    read_file,
    remove_quietly,
    rename_durably,
    replace_file,
    sync_directory,
    sync_file,
)
from headrace_broker.log.log_directory import LogDirectory
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.log.segments.flush import Flush
from headrace_broker.log.segments.segment import LogSegment
from headrace_broker.protocol.types import TopicId

LEAVING_NAME: Final = "leaving"
ARRIVING_NAME: Final = "arriving"
_NEVER: Final = 1 << 62


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyStep:
    """Whole batches to be copied; `run` may run in another thread."""

    target: PartitionLog
    segment: LogSegment
    path: Path
    position: int
    limit: int
    """The end of the source segment, in bytes."""
    bytes_max: int
    is_last: bool
    """Whether no segment follows."""

    @property
    def bytes_left(self) -> int:
        """How many bytes of the segment are not copied yet."""
        return self.limit - self.position

    def run(self) -> int:
        """Copy; return the number of bytes. Raises LogDirectoryFailure, ApiError(CORRUPT_MESSAGE).

        If retention removed the segment in the meantime, that is no failure: 0.
        """
        # A new descriptor: the log may close its own in the meantime, and the number may be reused.
        with failing_the_directory(self.path):
            try:
                fd = open_file(self.path, os.O_RDONLY)
            except FileNotFoundError:
                return 0
            try:
                data = self._read(fd)
            finally:
                os.close(fd)
        before = self.target.size_bytes
        self.target.append_as_follower(memoryview(data))
        return self.target.size_bytes - before

    def _read(self, fd: int) -> bytes:
        left = self.bytes_left
        data = os.pread(fd, min(left, self.bytes_max), self.position)
        if len(data) >= OFFSET_AND_LENGTH.size:
            first = OFFSET_AND_LENGTH.unpack_from(data)[1] + OFFSET_AND_LENGTH.size
            if len(data) < first <= left:
                data = os.pread(fd, first, self.position)
        return data


class FutureLog:
    """One copy. All but `CopyStep.run` and flushes belong to the thread that owns the log."""

    def __init__(
        self, key: TopicPartition, current: PartitionLog, target: LogDirectory, topic_id: TopicId
    ) -> None:
        """Create an empty copy. Raises LogDirectoryFailure, OutOfDescriptorsError."""
        self.key = key
        self.current = current
        self.target = target
        self._id = uuid.uuid4().hex
        self._cut = _NEVER
        """The lowest offset that the log was truncated to since the last `align`."""
        with as_a_whole(target.path):
            self.log = target.create_future(
                key,
                self._id,
                current.config,
                topic_id=topic_id,
                log_start_offset=current.log_start_offset,
            )
            # `prepare` makes it durable.
            replace_file(self.log.directory / ARRIVING_NAME, self._id.encode(), durable=False)
        self._flush: Flush | None = None
        self._is_released = False
        self._lower = current.before_truncation
        current.before_truncation = self._truncating
        # Compaction of the rest of the log could remove a tombstone for records that are already
        # copied.
        current.is_being_copied = True

    def _truncating(self, offset: int) -> None:
        self._cut = min(self._cut, offset)
        self._lower(offset)

    @property
    def is_complete(self) -> bool:
        """Whether the copy has every record."""
        return self._cut == _NEVER and self.log.log_end_offset >= self.current.log_end_offset

    @property
    def offset_lag(self) -> int:
        """How many offsets are not copied yet."""
        return max(0, self.current.log_end_offset - self.log.log_end_offset)

    # ---- copying

    def align(self) -> None:
        """Apply the log's truncations, and its log start offset."""
        current, log = self.current, self.log
        if self._cut < log.log_end_offset:
            log.truncate_to(self._cut)
        self._cut = _NEVER
        start = current.log_start_offset
        if start > log.log_end_offset:
            log.truncate_fully_and_start_at(start)
        else:
            log.delete_records_before(start)

    def next_step(self, bytes_max: int) -> CopyStep | None:
        """Return the next step; None if nothing is left to copy.

        Raises SuspectedDamage.
        """
        self.align()
        found = self._source()
        if found is None:
            # A truncation removed the batches between the last batch and the log's end.
            self.log.skip_to(self.current.log_end_offset)
            return None
        segment, position = found
        return CopyStep(
            target=self.log,
            segment=segment,
            path=segment.path,
            position=position,
            limit=segment.size,
            bytes_max=bytes_max,
            is_last=segment is self.current.segments.active,
        )

    def _source(self) -> tuple[LogSegment, int] | None:
        offset, segments = self.log.log_end_offset, self.current.segments
        if offset >= self.current.log_end_offset:
            return None
        segment: LogSegment | None = segments.floor(offset) or segments.first
        while segment is not None:
            position = segment.position_of(offset)
            if position < segment.size:
                return segment, position
            segment = segments.after(segment)
        return None

    @property
    def was_cut(self) -> bool:
        """Whether the log was truncated since the last step, so that its result is meaningless."""
        return self._cut != _NEVER

    def prepare(self) -> Callable[[], None]:
        """Return a function that makes all copied batches durable; it may run in another thread.

        Call `prepared` after it has run.
        """
        flush = self._flush = self.log.begin_flush()
        arriving = self.log.directory / ARRIVING_NAME
        leaving, move = self.current.directory / LEAVING_NAME, self._id.encode()

        def run() -> None:
            sync_file(arriving)
            flush.run()
            replace_file(leaving, move)

        return run

    def prepared(self) -> None:
        """Apply the result of the function that `prepare` returned."""
        if self._flush is not None:
            self.log.finish_flush(self._flush)

    # ---- the swap

    def swap(self, *, needs_flush: bool) -> PartitionLog:
        """Replace the log; return the log that is the partition's from now on.

        The copy must be complete and prepared. `needs_flush`: the last records must be on disk,
        because records count only then. Raises LogDirectoryFailure and OutOfDescriptorsError, with
        the log unchanged.
        """
        with as_a_whole(self.log.directory):
            return self._swap(needs_flush=needs_flush)

    def _swap(self, *, needs_flush: bool) -> PartitionLog:
        log, key = self.log, self.key
        log.take_over(self.current)
        if needs_flush:
            log.flush()
        folder = self.target.path / str(key)
        try:
            self.target.checkpoint_moved(key, log)
            rename_durably(log.directory, folder)
        except LogDirectoryFailure:
            # It is unknown whether the copy has its new name; it must not count.
            self._unmark()
            raise
        log.renamed(folder)
        self.release()
        self.target.adopt(key, log)
        return log

    def remove_source(self, source: LogDirectory) -> None:
        """Remove the old folder, or let the next start do it.

        Raises LogDirectoryFailure, OutOfDescriptorsError.
        """
        source.delete(*self.key)
        remove_quietly(self.log.directory / ARRIVING_NAME)

    def _unmark(self) -> None:
        folder = self.current.directory
        remove_quietly(folder / LEAVING_NAME)
        sync_directory(folder)

    def release(self) -> None:
        """Let the log be compacted and truncated again without this copy."""
        if self._is_released:
            return
        self._is_released = True
        self.current.is_being_copied = False
        self.current.before_truncation = self._lower

    def give_up(self) -> None:
        """Delete the copy; a step may be running. Raises LogDirectoryFailure."""
        self.release()
        if not self.target.is_abandoned:
            self.target.discard_future(self.log.directory)

    def close(self) -> None:
        """Close the files of a cancelled copy.

        Raises LogDirectoryFailure, OutOfDescriptorsError.
        """
        self.log.abandon()
        if self._flush is not None and not self.current.is_abandoned:
            self._unmark()


def superseded(holders: Sequence[LogDirectory], key: TopicPartition) -> list[LogDirectory]:
    """Return the directories whose folder of a partition is left over from a completed move.

    The process was killed after the swap and before the removal.
    """
    arrived = {_read(each, key, ARRIVING_NAME) for each in holders} - {""}
    return [each for each in holders if _read(each, key, LEAVING_NAME) in arrived]


def is_arrival(directory: LogDirectory, key: TopicPartition) -> bool:
    """Whether a folder came by a move that was not finished."""
    return _read(directory, key, ARRIVING_NAME) != ""


def is_departure(directory: LogDirectory, key: TopicPartition) -> bool:
    """Whether a folder may be left over from a move."""
    return _read(directory, key, LEAVING_NAME) != ""


def forget_move(directory: LogDirectory, key: TopicPartition) -> None:
    """Record that a folder is the only one of its partition."""
    for name in (ARRIVING_NAME, LEAVING_NAME):
        path = directory.path / str(key) / name
        with failing_the_directory(path):
            if not path.exists():
                continue
        remove_quietly(path)
        sync_directory(path.parent)


def _read(directory: LogDirectory, key: TopicPartition, name: str) -> str:
    path = directory.path / str(key) / name
    with failing_the_directory(path):
        try:
            return read_file(path).decode("ascii")
        except (FileNotFoundError, ValueError):
            return ""
