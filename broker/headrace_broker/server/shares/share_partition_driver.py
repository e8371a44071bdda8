"""The owner of one share partition at its leader: reads, times and persists its decisions.

Owns a pure `SharePartition`, its lock timer and the one write in flight. It lives for one leader
epoch: a new leader reads the state from the share coordinator, which fences this driver.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Final, Protocol

import structlog

from headrace_broker.coordinator.share_partition.acknowledgement import Acknowledgement
from headrace_broker.coordinator.share_partition.partition import (
    Acquired,
    AcquireRequest,
    DeadLetter,
    ReadBatch,
    SharePartition,
)
from headrace_broker.coordinator.share_state.shard import StateChange
from headrace_broker.coordinator.share_state.state import ShareKey, ShareState
from headrace_broker.log.batches import iterate_headers
from headrace_broker.log.segments.time_lookup import UnreadableRecordsError
from headrace_broker.metadata.settings.setting_types import duration_ms
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.server.clock import Clock
from headrace_broker.server.partitions.partition import (
    ISOLATION_READ_COMMITTED,
    Partition,
    not_leader,
)
from headrace_broker.server.shares.share_settings import ShareSettings

log = structlog.get_logger(__name__)

_READ_UNCOMMITTED: Final = 0
_RETRY_DELAY_S: Final = 1.0
_FENCED: Final = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH})
_NOT_NOW: Final = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.REQUEST_TIMED_OUT}
)


class StatePersister(Protocol):
    """Persists the states of share partitions."""

    async def read(self, key: ShareKey, leader_epoch: int) -> ShareState:
        """Return the state to the leader of this epoch; raise ApiError."""
        ...

    async def write(self, key: ShareKey, change: StateChange) -> None:
        """Persist a change of state; raise ApiError."""
        ...


class DeadLetterTopics(Protocol):
    """The topics for records that no member could process."""

    async def write(self, group_id: str, source: Partition, letters: Sequence[DeadLetter]) -> bool:
        """Return True when they are durable, False if the group wants none; raise ApiError."""
        ...


class Status(Enum):
    """Whether the share partition can be used."""

    LOADING = "loading"
    ACTIVE = "active"
    CLOSED = "closed"


class SharePartitionDriver:
    """One partition, for one group, while this broker leads it in one epoch."""

    def __init__(
        self,
        key: ShareKey,
        partition: Partition,
        persister: StatePersister,
        clock: Clock,
        settings: Callable[[], ShareSettings],
        dead_letters: DeadLetterTopics,
    ) -> None:
        self.key = key
        self.partition = partition
        self.status = Status.LOADING
        self.state = SharePartition(0)
        self.error = not_leader()
        """Why it is closed."""
        self.waiters: dict[asyncio.Event, None] = {}
        """Events to set whenever more records may have become acquirable, the oldest first."""
        self._leader_epoch = partition.leader_epoch
        self._state_epoch = 0
        self._persister = persister
        self._clock = clock
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._acknowledging: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._writer: asyncio.Task[None] | None = None
        self._dead_letters = dead_letters
        self._burier: asyncio.Task[None] | None = None
        self._loader = self._loop.create_task(self._load())

    @property
    def is_current(self) -> bool:
        """Whether this broker still leads the partition in the same epoch."""
        partition = self.partition
        return partition.leading is not None and partition.leader_epoch == self._leader_epoch

    @property
    def is_settled(self) -> bool:
        """Whether nothing is acquired and all is durable, so that the driver can be dropped."""
        return self.status is not Status.ACTIVE or (
            self._writer is None
            and not self.state.needs_write
            and not self.state.in_flight
            and not self.state.has_dead_letters
        )

    def now_ms(self) -> int:
        """Return monotonic time: setting the clock must not expire locks."""
        return int(self._loop.time() * 1000)

    # ---- loading

    async def _load(self) -> None:
        try:
            kept = await self._persister.read(self.key, self._leader_epoch)
            if not self.is_current:
                raise not_leader()
            start = kept.start_offset
            self._state_epoch = kept.state_epoch
            if start < 0:
                start = self._initial_offset()
            self.state = SharePartition(start, kept.batches)
            if kept.start_offset < 0:
                # Make it durable at once: another leader must not choose a later start and skip
                # records.
                self.state.written_start = kept.start_offset
        except ApiError as error:
            log.info("share partition not loaded", key=str(self.key), error=str(error))
            self.close(_for_clients(error))
            return
        if self.status is Status.LOADING:
            self.status = Status.ACTIVE
            self._bury_soon()
            self._changed()

    def _initial_offset(self) -> int:
        partition, reset = self.partition, self._settings().reset
        if reset == "earliest":
            return int(partition.log.log_start_offset)
        back_ms = duration_ms(reset)
        if back_ms is None:
            return int(partition.high_watermark)
        try:
            found = partition.find_timestamp(max(0, self._clock.now_ms() - back_ms))
        except UnreadableRecordsError as error:
            # The record may be in that batch: its consumers shall decide what to do with it.
            return min(error.offset, partition.high_watermark)
        # Beyond the high watermark, a record may still be lost with its leader.
        return min(found.offset if found else partition.high_watermark, partition.high_watermark)

    def close(self, error: ApiError) -> None:
        """Stop; pending requests fail with the reason."""
        if self.status is Status.CLOSED:
            return
        self.status, self.error = Status.CLOSED, error
        for handle in (self._timer, self._retry):
            if handle is not None:
                handle.cancel()
        for task in (self._loader, self._writer, self._burier):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        _fail(self._acknowledging, error)
        self._acknowledging = []
        self._wake()

    def check(self) -> None:
        """Raise ApiError unless members may use this partition; it may still be loading."""
        if not self.is_current:
            self.close(not_leader())
        if self.status is Status.CLOSED:
            raise self.error

    # ---- members

    def fetch(
        self, request: AcquireRequest, max_bytes: int
    ) -> tuple[bytes | memoryview, list[Acquired]]:
        """Acquire records; return them with the batches that hold them. Raises ApiError."""
        self.check()
        if self.status is not Status.ACTIVE:
            return b"", []
        partition, settings = self.partition, self._settings()
        self.state.move_log_start(partition.log.log_start_offset)
        isolation = ISOLATION_READ_COMMITTED if settings.reads_committed else _READ_UNCOMMITTED
        while True:
            begin = self.state.fetch_offset(settings.limits)
            if begin is None or begin >= partition.readable_end(isolation):
                return b"", []
            data = partition.read(begin, max_bytes, isolation=isolation, at_least_one=True)
            batches = self._batches(begin, data, reads_committed=settings.reads_committed)
            if not batches:
                return b"", []
            acquired = self.state.acquire(request, begin, batches, settings.limits, self.now_ms())
            if acquired:
                self._arm()
                self._write_soon()
                return _holding(data, acquired), acquired
            if self.state.fetch_offset(settings.limits) in {None, begin}:
                return b"", []
            self._write_soon()  # only markers, or aborted records

    def readable_bytes(self, wanted: int) -> int:
        """Return how many bytes a fetch could read, up to `wanted`.

        Raises ApiError.
        """
        self.check()
        settings = self._settings()
        begin = self.state.fetch_offset(settings.limits)
        isolation = ISOLATION_READ_COMMITTED if settings.reads_committed else _READ_UNCOMMITTED
        partition = self.partition
        if self.status is not Status.ACTIVE or begin is None:
            return 0
        begin = max(begin, partition.log.log_start_offset)
        end = partition.readable_end(isolation)
        if begin >= end:
            return 0
        data = partition.read(begin, wanted, isolation=isolation, at_least_one=True)
        *_, (_, last) = iterate_headers(data)
        # A read returns whole batches. Where another one follows, there is more than was wanted.
        return max(wanted, len(data)) if last.next_offset < end else len(data)

    def _batches(
        self, begin: int, data: bytes | memoryview, *, reads_committed: bool
    ) -> list[ReadBatch]:
        headers = [header for _, header in iterate_headers(data)]
        aborted = []
        if reads_committed and headers:
            aborted = self.partition.log.aborted_transactions(begin, headers[-1].next_offset)
        return [
            ReadBatch(
                first=header.base_offset,
                last=header.last_offset,
                can_be_delivered=not header.is_control
                and not (
                    header.is_transactional
                    and any(
                        item.producer_id == header.producer_id
                        and item.first_offset <= header.base_offset <= item.last_offset
                        for item in aborted
                    )
                ),
            )
            for header in headers
        ]

    def acknowledge(
        self, member_id: str, acknowledgements: Iterable[Acknowledgement]
    ) -> asyncio.Future[None] | None:
        """Apply a member's acknowledgements; return a future of their durability, None if durable.

        Raises ApiError with nothing applied.
        """
        self.check()
        limits = self._settings().limits
        decides = self.state.acknowledge(member_id, acknowledgements, limits, self.now_ms())
        self._arm()
        if not decides:
            return None
        durable: asyncio.Future[None] = self._loop.create_future()
        self._acknowledging.append(durable)
        self._write_soon()
        return durable

    def release(self, member_id: str) -> None:
        """Release what a member has acquired: the member is gone."""
        if self.status is Status.ACTIVE and self.state.release(member_id, self._settings().limits):
            self._changed()

    # ---- locks

    def _arm(self) -> None:
        """Set the timer to the next lock's expiry."""
        deadline_ms = self.state.next_deadline_ms()
        if self._timer is not None:
            if deadline_ms is not None and self._timer.when() <= deadline_ms / 1000:
                return  # the timer checks again then
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None and self.status is Status.ACTIVE:
            self._timer = self._loop.call_at(deadline_ms / 1000 + 0.001, self._expire)

    def _expire(self) -> None:
        self._timer = None
        if not self.is_current:
            self.close(not_leader())
        elif self.state.expire(self._settings().limits, self.now_ms()):
            self._changed()
        else:
            self._arm()

    # ---- durability

    def _changed(self) -> None:
        self._arm()
        self._write_soon()
        self._wake()

    def _wake(self) -> None:
        for waiter in self.waiters:
            waiter.set()

    def _write_soon(self) -> None:
        if self._writer is None and self._retry is None and self.state.needs_write:
            self._writer = self._loop.create_task(self._write())

    def _write_again(self) -> None:
        self._retry = None
        self._write_soon()

    async def _write(self) -> None:
        """Write changes until none is left; changes during a write share the next one."""
        try:
            # Who waits for a write that was under way already waits for one more.
            while self.status is Status.ACTIVE and (self.state.needs_write or self._acknowledging):
                write = self.state.take_write()
                waiting, self._acknowledging = self._acknowledging, []
                change = StateChange(
                    state_epoch=self._state_epoch,
                    leader_epoch=self._leader_epoch,
                    start_offset=write.start_offset,
                    complete_count=write.complete_count,
                    batches=tuple(write.batches),
                )
                try:
                    await self._persister.write(self.key, change)
                except ApiError as error:
                    self.state.failed(write)
                    refusal = _for_clients(error)
                    _fail(waiting, refusal)
                    if error.code in _FENCED or error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        self.close(refusal)
                        return
                    log.warning("share state not written", key=str(self.key), error=str(error))
                    self._retry = self._loop.call_later(_RETRY_DELAY_S, self._write_again)
                    self._expire_now()
                    return
                except asyncio.CancelledError:
                    _fail(waiting, self.error)
                    raise
                self.state.committed(write)
                self._bury_soon()
                for future in waiting:
                    if not future.done():
                        future.set_result(None)
                self._wake()
        finally:
            self._writer = None

    # ---- dead letters

    def _bury_soon(self) -> None:
        """Write the dead letters whose archiving is durable; only between state writes."""
        if self._burier is None and self.status is Status.ACTIVE:
            letters = self.state.dead_letters(self._settings().limits)
            if letters:
                self._burier = self._loop.create_task(self._bury(letters))

    async def _bury(self, letters: Sequence[DeadLetter]) -> None:
        """Write letters to the dead-letter topic; they are done whatever the outcome."""
        try:
            state = self.state
            try:
                is_written = await self._dead_letters.write(
                    self.key.group_id, self.partition, letters
                )
            except ApiError:
                state.dead_letters_lost += sum(item.size for item in letters)
            else:
                state.dead_lettered += sum(item.size for item in letters) if is_written else 0
            for item in letters:
                state.archive_dead(item.first, item.last)
        finally:
            self._burier = None
        if self._writer is None:
            self._bury_soon()  # no write is in flight: later changes are durable
        self._changed()

    def _expire_now(self) -> None:
        """Expire the locks that ended while their acknowledgement was being written."""
        if self.state.expire(self._settings().limits, self.now_ms()):
            self._wake()
        self._arm()


def _holding(data: bytes | memoryview, acquired: list[Acquired]) -> bytes | memoryview:
    """Return the batches that hold the acquired records."""
    begin = end = 0
    for position, header in iterate_headers(data):
        if header.last_offset < acquired[0].first:
            begin = position + header.size_bytes
        if header.base_offset <= acquired[-1].last:
            end = position + header.size_bytes
    return memoryview(data)[begin:end]


def _for_clients(error: ApiError) -> ApiError:
    """Return the error that a client gets for a share coordinator's refusal (ShareFetchUtils)."""
    if error.code in _FENCED:
        return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, error.message)
    if error.code in _NOT_NOW:
        return ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
    return error


def _fail(futures: list[asyncio.Future[None]], error: ApiError) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
            future.exception()  # its client may be gone
