"""The owner of one partition of `__share_group_state`: carries out the pure shard's decisions.

As with groups, state changes the moment a decision is made, and the response waits for the commit.
After a failed append, memory is ahead of the log: it is discarded, and loaded again.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar
from uuid import UUID

import structlog

from headrace_broker.coordinator.share_state.records import ShareRecord, SnapshotRecord
from headrace_broker.coordinator.share_state.shard import (
    ShareStateShard,
    decide_cold_snapshots,
    decide_topics_deleted,
    replay,
)
from headrace_broker.protocol.errors import ApiError, DecodeError, ErrorCode
from headrace_broker.protocol.types import PartitionIndex
from headrace_broker.server.clock import Clock
from headrace_broker.server.shares.state_log import ShareStateLog, decode_records, encode_units

log = structlog.get_logger(__name__)

AnswerT = TypeVar("AnswerT")
Decide = Callable[[ShareStateShard], tuple[list[ShareRecord], AnswerT]]

_RELOAD_DELAY_S: Final = 1.0
_BATCH_BYTES_MAX: Final = 512 * 1024
_UNWRITTEN_MAX: Final = 10_000


class StateShardDriver:
    """Owns a `ShareStateShard` and its partition of the log, for one leader epoch."""

    def __init__(self, index: PartitionIndex, state_log: ShareStateLog, clock: Clock) -> None:
        self.index = index
        self.shard = ShareStateShard()
        self._log = state_log
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._is_active = False
        self._is_closed = False
        self._unwritten: list[tuple[list[ShareRecord], asyncio.Future[Any], Any]] = []
        self._writer: asyncio.Task[None] | None = None
        self._loader: asyncio.Task[None] | None = None

    def load(self) -> None:
        """Begin to replay the partition, in the background."""
        self._is_active = False
        self._loader = self._loop.create_task(self._load())

    async def _load(self) -> None:
        while not self._is_closed:
            try:
                shard = ShareStateShard()
                async for chunk in self._log.read_all():
                    for offset, record in decode_records(chunk):
                        replay(shard, record, offset)
                    await asyncio.sleep(0)  # other partitions are being served in between
                await self._log.wait_committed()
            except (ApiError, DecodeError, OSError) as error:
                log.warning("load failed", partition=self.index, error=str(error))
                await asyncio.sleep(_RELOAD_DELAY_S)
            else:
                self.shard = shard
                self._is_active = True
                return

    def close(self) -> None:
        """Stop serving: waiting clients must look for the coordinator again."""
        self._is_closed, self._is_active = True, False
        for task in (self._writer, self._loader):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self._abandon()

    def check_active(self) -> None:
        """Raise ApiError unless the partition can be served now."""
        if self._is_closed:
            raise not_coordinator()
        if not self._is_active:
            raise ApiError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the share state is being loaded"
            )

    async def submit(self, decide: Decide[AnswerT]) -> AnswerT:
        """Decide, and return the answer once all decisions so far are committed; raise ApiError."""
        self.check_active()
        if len(self._unwritten) >= _UNWRITTEN_MAX:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the log is too slow")
        records, answer = decide(self.shard)
        for record in records:
            replay(self.shard, record)
        if not records and not self._unwritten:
            return answer
        future: asyncio.Future[AnswerT] = self._loop.create_future()
        self._unwritten.append((records, future, answer))
        if self._writer is None:
            self._writer = self._loop.create_task(self._write())
        return await future

    async def _write(self) -> None:
        """Write all waiting records in one batch: many partitions share an append."""
        try:
            while self._unwritten:
                taken = list(self._unwritten)
                units = [records for records, _, _ in taken]
                for records, batch in encode_units(units, self._clock.now_ms(), _BATCH_BYTES_MAX):
                    first = await self._log.append(batch)
                    for place, record in enumerate(records):
                        if isinstance(record, SnapshotRecord) and record.key in self.shard.states:
                            self.shard.snapshot_offsets[record.key] = first + place
                del self._unwritten[: len(taken)]
                for _, future, answer in taken:
                    if not future.done():
                        future.set_result(answer)
        except ApiError as error:
            log.warning("append refused", partition=self.index, error=str(error))
            self._start_over()
        except Exception:
            # Whatever failed, memory is ahead of the log now.
            log.exception("append failed", partition=self.index)
            self._start_over()
        finally:
            self._writer = None

    def _start_over(self) -> None:
        self._abandon()
        if not self._is_closed:
            self.load()

    def _abandon(self) -> None:
        waiting, self._unwritten = self._unwritten, []
        for _, future, _ in waiting:
            if not future.done():
                future.set_exception(
                    ApiError(ErrorCode.NOT_COORDINATOR, "the share coordinator changed")
                )
                future.exception()  # the waiting client may be gone

    # ---- periodic work

    async def prune(self) -> None:
        """Delete records below the oldest snapshot that is needed (KAFKA-18058).

        Only while everything is committed: an uncommitted snapshot may still be lost, and the
        records that it replaces must not be deleted.
        """
        if self._is_active and not self._unwritten and self._log.is_committed:
            try:
                self._log.delete_below(self.shard.needed_from(self._log.end_offset))
            except ApiError as error:
                log.warning("prune failed", partition=self.index, error=str(error))

    async def refresh(self, age_ms: int) -> None:
        """Write old snapshots again, so that they do not hold up pruning."""
        now_ms = self._clock.now_ms()
        await self._submit_alone(lambda shard: (decide_cold_snapshots(shard, now_ms, age_ms), None))

    async def topics_deleted(self, topic_ids: Collection[UUID]) -> None:
        """Delete the state of deleted topics."""
        await self._submit_alone(
            lambda shard: (list(decide_topics_deleted(shard, topic_ids)), None)
        )

    async def _submit_alone(self, decide: Decide[None]) -> None:
        try:
            await self.submit(decide)
        except ApiError as error:
            log.info("left for later", partition=self.index, error=str(error))


def not_coordinator() -> ApiError:
    """Return NOT_COORDINATOR: the client must look for the coordinator again."""
    return ApiError(
        ErrorCode.NOT_COORDINATOR, "this broker does not coordinate the share partition"
    )
