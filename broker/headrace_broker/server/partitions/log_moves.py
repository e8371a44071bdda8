"""Moves of replicas between the log directories of this broker (KIP-113, KIP-858).

Owns which replicas move. Each move is a task. It copies the log in steps, in a thread, as fast as
the throttle allows. Once everything is copied, it reports the new directory to the controller. When
the metadata names that directory, it copies the last records and swaps the logs without leaving the
event loop, so that no append comes in between.

A move ends when its replica is removed, when either directory fails, or when a client chooses
another directory. A new process finds the folders of unfinished copies and starts those copies from
the beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import structlog

from headrace_broker.log.checkpoints import TopicPartition
from headrace_broker.log.descriptor_shortage import OutOfDescriptorsError
from headrace_broker.log.files import LogDirectoryFailure, as_a_whole
from headrace_broker.log.future_log import CopyStep, FutureLog
from headrace_broker.log.segments.segment import SuspectedDamage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import MIGRATING_DIRECTORY, TopicId
from headrace_broker.replication.throttle import Throttle

if TYPE_CHECKING:
    from headrace_broker.log.log_directories import LogDirectories
    from headrace_broker.log.log_directory import LogDirectory
    from headrace_broker.server.partitions.partition import Partition
    from headrace_broker.server.partitions.replica_host import ReplicaHost

log = structlog.get_logger()

CHOICES_MAX: Final = 10_000
"""How many directories are remembered for replicas that do not exist yet; the oldest go first."""
_STEP_BYTES: Final = 1024 * 1024
_LAST_BYTES: Final = 64 * 1024  # copied on the event loop, right before the swap
_UNSYNCED_BYTES_MAX: Final = 1024 * 1024
_PREPARATIONS_MAX: Final = 5
_PAUSE_SECONDS: Final = 0.1
_DAMAGED_SECONDS: Final = 1.0
_SHORTAGE_SECONDS: Final = 1.0


class Move:
    """A replica that is moving."""

    def __init__(self, partition: Partition, source: LogDirectory, future: FutureLog) -> None:
        self.partition = partition
        self.source = source
        self.future = future
        self.is_over = False
        self.is_announced = False
        """Whether the controller was told of the new directory."""
        self.changed = asyncio.Event()
        self.unsynced_bytes = 0
        self.preparations = 0

    @property
    def target(self) -> LogDirectory:
        """The directory it moves to."""
        return self.future.target


class LogMoves:
    """The moves of one broker."""

    def __init__(
        self, directories: LogDirectories, host: ReplicaHost, threads: int | None = None
    ) -> None:
        self.throttle = Throttle()
        self.note_directory: Callable[[UUID, int, UUID, UUID], None]
        self._directories = directories
        self._host = host
        count = threads or len(directories.paths)
        self._slots = asyncio.Semaphore(count)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="alter_log_dirs")
        self._moves: dict[tuple[UUID, int], Move] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._choices: dict[TopicPartition, Path] = {}

    def __len__(self) -> int:
        return len(self._moves)

    # ---- what clients ask for

    def choose(self, key: TopicPartition, path: Path) -> None:
        """Remember the directory for a replica that may not exist yet."""
        self._choices.pop(key, None)
        self._choices[key] = path
        if len(self._choices) > CHOICES_MAX:
            del self._choices[next(iter(self._choices))]

    def take_choice(self, key: TopicPartition) -> Path | None:
        """Return the directory chosen for a replica that is being created, and forget it."""
        return self._choices.pop(key, None)

    def ask(self, partition: Partition, path: Path) -> None:
        """Move a replica to a directory; if it is there already, cancel any move.

        Raises ApiError.
        """
        source, target = self._directories.holder(partition.log), self._directories.at(path)
        if source is None or target is None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the log directory has failed")
        move = self._moves.get((partition.topic_id, partition.index))
        if move is not None:
            if move.target is target:
                return
            self.cancel(partition)
        if source is target:
            return
        if self._directories.failed:
            # As in Kafka: the failed directory may hold a copy of the replica.
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR, "no replica moves while a log directory is offline"
            )
        try:
            self._begin(partition, source, target)
        except LogDirectoryFailure as failure:
            raise partition.directory_failed(failure) from failure

    def resume(self, partition: Partition) -> None:
        """Start the moves that a former process did not finish.

        Raises LogDirectoryFailure; OutOfDescriptorsError, and then it may be called again.
        """
        source = self._directories.holder(partition.log)
        if source is None or self._directories.failed:
            return
        key = TopicPartition(partition.topic, partition.index)
        for target in self._directories:
            if key not in target.futures:
                continue
            replica = partition.topic_id, partition.index
            with as_a_whole(target.path):
                is_wanted = target.take_futures(key, TopicId(partition.topic_id))
                if is_wanted and target is not source and replica not in self._moves:
                    self._begin(partition, source, target)

    def _begin(self, partition: Partition, source: LogDirectory, target: LogDirectory) -> None:
        key = TopicPartition(partition.topic, partition.index)
        future = FutureLog(key, partition.log, target, TopicId(partition.topic_id))
        move = self._moves[partition.topic_id, partition.index] = Move(partition, source, future)
        log.info(
            "replica moves to another log directory",
            topic=partition.topic,
            partition=partition.index,
            source=str(source.path),
            target=str(target.path),
            bytes=partition.log.size_bytes,
        )
        task = asyncio.get_running_loop().create_task(self._run(move))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._host.on_failure(error)

    # ---- what others read

    def future_of(self, partition: Partition) -> FutureLog | None:
        """Return the copy of a replica that is moving."""
        move = self._moves.get((partition.topic_id, partition.index))
        return None if move is None else move.future

    def directory_of(self, partition: Partition) -> LogDirectory | None:
        """Return the directory that the controller should have for a replica."""
        move = self._moves.get((partition.topic_id, partition.index))
        if move is not None and move.is_announced:
            return move.target
        return self._directories.holder(partition.log)

    # ---- events of a replica that moves

    def changed(self, partition: Partition) -> None:
        """Take note that a replica's metadata has changed."""
        move = self._moves.get((partition.topic_id, partition.index))
        if move is not None:
            move.changed.set()

    def cancel(self, partition: Partition) -> None:
        """Cancel a replica's move: it stays where it is, or is being removed."""
        move = self._moves.pop((partition.topic_id, partition.index), None)
        if move is None:
            return
        move.is_over = True
        move.changed.set()
        if move.is_announced:
            # Whatever the controller knows or is about to learn: the replica has stayed.
            source = move.source.directory_id
            self.note_directory(partition.topic_id, partition.index, MIGRATING_DIRECTORY, source)
        log.info(
            "replica moves no more",
            topic=partition.topic,
            partition=partition.index,
            target=str(move.target.path),
        )
        try:
            move.future.give_up()
        except LogDirectoryFailure as failure:
            self._host.on_failure(failure)

    def directory_failed(self, directory: LogDirectory) -> None:
        """End the moves from or to a log directory that fails."""
        for move in list(self._moves.values()):
            if directory in (move.source, move.target):
                self.cancel(move.partition)

    async def stop(self) -> None:
        """Stop all moves; the next process starts the unfinished ones again."""
        for move in self._moves.values():
            move.is_over = True
            move.changed.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._threads.shutdown(wait=True)

    # ---- one move

    async def _run(self, move: Move) -> None:
        try:
            async with self._slots:
                while not move.is_over:
                    try:
                        await self._advance(move)
                    except OutOfDescriptorsError:
                        await self._pause(move, _SHORTAGE_SECONDS)
        except LogDirectoryFailure as failure:
            self._failed(move, failure)
        try:
            if move.future.log is not move.partition.log:
                move.future.release()
                with contextlib.suppress(OutOfDescriptorsError):
                    move.future.close()
        except LogDirectoryFailure as failure:
            self._host.on_failure(failure)

    def _failed(self, move: Move, failure: LogDirectoryFailure) -> None:
        if move.is_over and failure.is_about_a_missing_file:
            return  # the move was cancelled in the meantime
        first = failure.__context__
        for each in (first, failure):
            if isinstance(each, LogDirectoryFailure):
                self._host.on_failure(each)
        if not move.is_over:
            self.cancel(move.partition)

    async def _advance(self, move: Move) -> None:
        """Do what is next: copy, announce, or swap."""
        if move.partition.log.is_damaged:
            await self._pause(move, _DAMAGED_SECONDS)  # the damaged replica heals first
            return
        try:
            step = move.future.next_step(self._step_bytes())
            if step is not None and step.is_last and step.bytes_left <= _LAST_BYTES:
                move.unsynced_bytes += step.run()
                step = move.future.next_step(self._step_bytes())
        except OutOfDescriptorsError:
            raise
        except (SuspectedDamage, ApiError) as error:
            await self._look(move, error, None)
            return
        if step is not None:
            await self._copy(move, step)
        elif not self._is_assigned(move):
            await self._announce(move)
        elif move.unsynced_bytes > _UNSYNCED_BYTES_MAX and move.preparations < _PREPARATIONS_MAX:
            await self._prepare(move)
        else:
            self._swap(move)

    def _step_bytes(self) -> int:
        return min(_STEP_BYTES, max(1, self.throttle.rate))

    async def _copy(self, move: Move, step: CopyStep) -> None:
        if self.throttle.is_exceeded(self._host.now_ms()):
            await self._pause(move, _PAUSE_SECONDS)
            return
        try:
            copied: int = await self._in_thread(step.run)
        except OutOfDescriptorsError:
            raise
        except ApiError as error:
            await self._look(move, error, step)
            return
        move.unsynced_bytes += copied
        self.throttle.record(copied)

    async def _look(self, move: Move, error: Exception, step: CopyStep | None) -> None:
        """Have the log check what failed to be read; continue after a pause."""
        if move.future.was_cut or move.is_over:
            return
        segment, position = (step.segment, step.position) if step is not None else (None, 0)
        if isinstance(error, SuspectedDamage):
            segment, position = error.segment, error.position
        log.warning(
            "replica cannot be copied",
            topic=move.partition.topic,
            partition=move.partition.index,
            cause=str(error),
        )
        current = move.partition.log
        if segment is not None and current.segments.holds(segment):
            current.look_for_damage(segment, position)
        await self._pause(move, _DAMAGED_SECONDS)

    async def _prepare(self, move: Move) -> None:
        move.unsynced_bytes = 0
        move.preparations += 1
        await self._in_thread(move.future.prepare())
        if not move.is_over:
            move.future.prepared()

    async def _announce(self, move: Move) -> None:
        """Tell the controller the new directory, and wait until the metadata names it."""
        if not move.is_announced:
            await self._prepare(move)
            if move.is_over:
                return
            move.is_announced = True
        partition, target = move.partition, move.target.directory_id
        self.note_directory(partition.topic_id, partition.index, MIGRATING_DIRECTORY, target)
        await self._pause(move, _PAUSE_SECONDS)

    def _is_assigned(self, move: Move) -> bool:
        if not move.is_announced:
            return False
        partition = move.partition
        topic = self._host.image.topics_by_id.get(TopicId(partition.topic_id))
        image = None if topic is None else topic.partitions.get(partition.index)
        if image is None:
            return False
        return image.directory_of(self._host.node_id) == move.target.directory_id

    def _swap(self, move: Move) -> None:
        partition, future = move.partition, move.future
        is_behind = future.log.recovery_point < partition.log.recovery_point
        moved = future.swap(needs_flush=is_behind or partition.flushing is not None)
        partition.replace_log(moved)
        move.is_over = True
        del self._moves[partition.topic_id, partition.index]
        log.info(
            "replica is in another log directory",
            topic=partition.topic,
            partition=partition.index,
            path=str(move.target.path),
            log_end_offset=moved.log_end_offset,
        )
        try:
            # Without a descriptor the last step is left to the next start.
            with contextlib.suppress(OutOfDescriptorsError):
                future.remove_source(move.source)
        except LogDirectoryFailure as failure:
            self._host.on_failure(failure)

    async def _pause(self, move: Move, seconds: float) -> None:
        """Wait for a number of seconds, or until the replica changes."""
        move.changed.clear()
        try:
            await asyncio.wait_for(move.changed.wait(), seconds)
        except TimeoutError:
            return

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
