"""Group commit: with flush.messages or flush.ms, a record counts once it is on disk.

Each log has one fsync in flight; the next one covers what is appended meanwhile, so many small
writes share one. The leader acknowledges, and a follower's position counts, only up to
`durable_end`. flush.messages=N leaves up to N-1 records unsynced. flush.ms sets the latest moment,
but the fsync begins at once, because no acknowledgement goes out before it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace_broker.log.config import INFINITE
from headrace_broker.log.descriptor_shortage import OutOfDescriptorsError
from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import Offset
from headrace_broker.server.partitions.waiting import Acknowledge, CommitWaiters

if TYPE_CHECKING:
    from headrace_broker.log.config import LogConfig
    from headrace_broker.log.partition_log import PartitionLog
    from headrace_broker.log.segments.flush import Flush

_RETRY_SECONDS = 0.1


def unsynced_records_max(config: LogConfig) -> int | None:
    """Return how many records may be acknowledged without fsync; None where any number may."""
    if config.flush_ms < INFINITE:
        return 0
    if config.flush_messages < INFINITE:
        return config.flush_messages - 1
    return None


class GroupCommit:
    """The fsyncs of one partition's log."""

    def __init__(
        self,
        log: PartitionLog,
        unsynced_max: int,
        on_flushed: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._unsynced_max = unsynced_max
        self._log = log
        self._on_flushed = on_flushed
        self._on_failure = on_failure
        self._running = False
        self._is_closed = False
        self._waiting = CommitWaiters()

    @property
    def durable_end(self) -> Offset:
        """The offset below which records may be acknowledged."""
        log = self._log
        return Offset(min(log.log_end_offset, log.recovery_point + self._unsynced_max))

    def appended(self) -> None:
        """Begin an fsync where one is due and none is under way."""
        log = self._log
        is_due = log.log_end_offset - log.recovery_point > self._unsynced_max
        if not is_due or self._running or self._is_closed or log.is_abandoned:
            return
        self._running = True
        try:
            flush = log.begin_flush()
        except LogDirectoryFailure as error:
            self._on_failure(error)
            return
        except OutOfDescriptorsError:
            self._begin_later()
            return
        future = asyncio.get_running_loop().run_in_executor(None, flush.run)
        future.add_done_callback(lambda done: self._finish(log, flush, done))

    def _begin_later(self) -> None:
        """Try again, as nothing was synced; until then who waits goes on waiting."""
        self._running = True
        asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._begin_again)

    def _begin_again(self) -> None:
        self._running = False
        self.appended()

    def add(self, offset: Offset, acknowledge: Acknowledge) -> None:
        """Call `acknowledge` when all below `offset` may be acknowledged."""
        if offset <= self.durable_end:
            acknowledge(None)
        else:
            self._waiting.add(offset, acknowledge)

    async def wait_durable(self) -> None:
        """Return when all appended records may be acknowledged, or when the log is closed."""
        while self._log.log_end_offset > self.durable_end and not self._is_closed:
            self.appended()
            if self._is_closed:
                return  # the log directory failed just now
            with contextlib.suppress(ApiError):
                await self._waiting.future(self._log.log_end_offset)
                return
            # The log was truncated, and may end elsewhere by now.

    def configure(self, unsynced_max: int) -> None:
        """Let another number of records be unsynced; `appended` then begins an fsync if due."""
        self._unsynced_max = unsynced_max
        self._waiting.commit(self.durable_end)

    def stop(self) -> None:
        """Begin no further fsync: none is asked for any more, so nobody has to wait for one."""
        self._is_closed = True
        self._waiting.commit(self._log.log_end_offset)

    def truncated(self) -> None:
        """Fail who waits for what was cut: other records will be on disk at those offsets."""
        error = ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the records were truncated")
        self._waiting.fail(error, above=self._log.log_end_offset)

    def replace_log(self, log: PartitionLog) -> None:
        """Switch to a log in another place that has the same records, all of them durable."""
        self._log = log
        self._waiting.commit(self.durable_end)
        self._on_flushed()

    def close(self) -> None:
        """Begin no further fsync: the log is closed."""
        self._is_closed = True
        self._waiting.fail(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the replica is gone"))

    def _finish(self, log: PartitionLog, flush: Flush, done: asyncio.Future[None]) -> None:
        self._running = False
        if done.cancelled():
            return
        error = done.exception()
        if isinstance(error, OutOfDescriptorsError):
            self._begin_later()
            return
        # In the meantime the partition was deleted, or moved to another log directory, where others
        # may have made durable what is waited for here.
        is_gone = (
            log.is_abandoned
            and isinstance(error, LogDirectoryFailure)
            and error.is_about_a_missing_file
        )
        if error is not None and not is_gone:
            # A failed fsync is never retried: the kernel may have marked the pages clean
            # (fsyncgate).
            self._on_failure(error)
            return
        if self._is_closed:
            return
        if log is self._log and not is_gone:
            log.finish_flush(flush)
        self._waiting.commit(self.durable_end)
        self._on_flushed()
        self.appended()
