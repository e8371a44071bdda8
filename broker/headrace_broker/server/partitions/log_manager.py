"""What a broker does for its logs between requests: flush, checkpoint, retain, compact, remove.

Fsyncs and compaction run beside the event loop, in one thread per log directory; the loop takes
over their results. A disk error here takes the directory offline, as in an append. What lacks a
file descriptor is done in the next round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import structlog

from headrace_broker.log.compaction import Compaction
from headrace_broker.log.descriptor_shortage import OutOfDescriptorsError
from headrace_broker.log.files import LogDirectoryFailure, failing_the_directory
from headrace_broker.log.log_directory import LogDirectory
from headrace_broker.log.scrub import ScrubStep
from headrace_broker.log.segments.segment import SuspectedDamage
from headrace_broker.server.clock import Clock
from headrace_broker.server.config.broker_config import BrokerConfig
from headrace_broker.server.partitions.replica_manager import ReplicaManager

if TYPE_CHECKING:
    from headrace_broker.log.partition_log import PartitionLog
    from headrace_broker.server.partitions.partition import Partition

log = structlog.get_logger()

_FIRST_MS_MAX = 600_000


class LogManager:
    """The periodic tasks of one log directory."""

    def __init__(
        self,
        config: BrokerConfig,
        directory: LogDirectory,
        replicas: ReplicaManager,
        clock: Clock,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._values = config.values
        self._directory = directory
        self._replicas = replicas
        self._clock = clock
        self._on_failure = on_failure
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="log_manager")
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin all periodic tasks."""
        plan: list[tuple[str, str, Callable[[], Awaitable[None]]]] = [
            ("flush", "log.flush.offset.checkpoint.interval.ms", self.flush),
            (
                "high watermarks",
                "replica.high.watermark.checkpoint.interval.ms",
                self.checkpoint_high_watermarks,
            ),
            ("retention", "log.retention.check.interval.ms", self.retain),
            ("removal", "log.retention.check.interval.ms", self.remove_deleted),
        ]
        if self._values["log.cleaner.enable"]:
            plan.append(("cleaner", "log.cleaner.backoff.ms", self.compact))
        if self._values["headrace.log.scrub.bytes.per.second"]:
            plan.append(("scrub", "headrace.log.scrub.interval.ms", self.scrub))
        for name, interval, work in plan:
            self._tasks.append(asyncio.create_task(self._repeat(interval, work), name=name))

    async def stop(self) -> None:
        """Stop them; work that is running in the thread finishes first."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._disk.shutdown(wait=True)

    async def _repeat(self, interval: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work each time the interval is over; the interval may change in between."""
        # Otherwise a broker that restarts every day would never reach a daily task.
        pause_ms = min(self._values[interval], _FIRST_MS_MAX)
        while True:
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = self._values[interval]
            if self._directory.is_abandoned:
                return
            try:
                with failing_the_directory(self._directory.path):
                    await work()
            except asyncio.CancelledError:
                raise
            except OutOfDescriptorsError:
                continue
            except Exception as error:  # noqa: BLE001 (whatever it is, a log is in an unknown state)
                self._on_failure(error)
                return

    def _partitions(self) -> list[Partition]:
        """The replicas in this directory, at this moment."""
        folder = self._directory.path
        return [each for each in self._replicas if each.log.directory.parent == folder]

    async def flush(self) -> None:
        """Fsync the logs and write their recovery points: recovery after a kill begins there."""
        for partition in self._partitions():
            log_ = partition.log
            if not log_.is_abandoned:
                log_.snapshot_producers()
            if not log_.is_abandoned and log_.recovery_point < log_.log_end_offset:
                flush = log_.begin_flush()
                if await self._in_thread_unless_deleted(log_, flush.run):
                    log_.finish_flush(flush)
        self._directory.checkpoint()

    async def checkpoint_high_watermarks(self) -> None:
        """Write the high watermarks that have moved."""
        self._directory.checkpoint_high_watermarks()

    async def retain(self) -> None:
        """Apply retention.ms, retention.bytes and producer.id.expiration.ms."""
        now_ms = self._clock.now_ms()
        elapsed_ms = int(asyncio.get_running_loop().time() * 1000)
        expiration_ms: int = self._values["producer.id.expiration.ms"]
        for partition in self._partitions():
            if partition.log.is_abandoned:
                continue
            partition.log.expire_producers(now_ms, elapsed_ms, expiration_ms)
            freed = partition.log.apply_retention(now_ms)
            if freed:
                log.info(
                    "retention removed segments",
                    topic=partition.topic,
                    partition=partition.index,
                    bytes=freed,
                    log_start_offset=partition.log.log_start_offset,
                )
            await asyncio.sleep(0)

    async def remove_deleted(self) -> None:
        """Free the space of deleted partitions."""
        await self._in_thread(self._directory.remove_deleted)

    async def compact(self) -> None:
        """Compact what is dirty enough, one log at a time; the long part runs in the thread."""
        for partition in self._partitions():
            if partition.log.is_abandoned or not partition.log.config.compacts:
                continue
            compaction = Compaction.begin(
                partition.log, self._clock.now_ms(), is_everywhere=partition.is_everywhere
            )
            if compaction is None:
                continue
            try:
                if not await self._in_thread_unless_deleted(partition.log, compaction.run):
                    continue
            except SuspectedDamage as suspicion:
                if partition.log.is_abandoned:
                    continue  # deleted in the meantime: its files have other names
                if partition.log.segments.holds(suspicion.segment):
                    partition.log.look_for_damage(suspicion.segment, suspicion.position)
            compaction.finish(is_everywhere=partition.is_everywhere)

    async def scrub(self) -> None:
        """Check every batch once, slowly, to find damage while there are good copies."""
        totals = self._directory.scrub
        for partition in self._partitions():
            for segment in list(partition.log.segments):
                position, offset = 0, segment.base_offset
                while position < segment.size and partition.log.segments.holds(segment):
                    step = ScrubStep.begin(partition.log, segment, position, offset)
                    try:
                        await self._in_thread(step.run)
                    except LogDirectoryFailure:
                        if partition.log.segments.holds(segment) and not partition.log.is_abandoned:
                            raise
                        break  # truncation, retention or compaction has removed the segment
                    found = step.finish()
                    totals.checked_bytes += step.checked_bytes
                    if found is None:
                        break
                    totals.damage += found
                    position, offset = step.position, step.next_offset
                    rate: int = self._values["headrace.log.scrub.bytes.per.second"]
                    await asyncio.sleep(step.checked_bytes / max(rate, 1))
        totals.passes += 1

    async def _in_thread_unless_deleted(self, log_: PartitionLog, work: Callable[[], Any]) -> bool:
        """Work on a log's files; return False if its partition was deleted in the meantime."""
        try:
            await self._in_thread(work)
        except LogDirectoryFailure as failure:
            if not (log_.is_abandoned and failure.is_about_a_missing_file):
                raise
        return not log_.is_abandoned

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work)
