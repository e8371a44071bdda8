"""The owner of one partition's groups: carries out what the pure coordinator decides.

State changes the moment a decision is made, and the response waits until its records are committed,
as in Kafka's coordinator runtime. If state changed at commit instead, two requests that arrive
within one commit would be decided on the same old state. The price: after a failed append, memory
is ahead of the log. Then it is discarded, and the partition is loaded again.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile
from typing import Any, Final, TypeVar
from uuid import UUID

import structlog

from headrace_broker.coordinator.config import GroupConfig
from headrace_broker.coordinator.consumer.loading import finish_loading_modern_groups
from headrace_broker.coordinator.consumer.regexes import decide_regexes
from headrace_broker.coordinator.consumer.step import ConsumerContext
from headrace_broker.coordinator.decision import (
    GroupDecision,
    InitializeShareState,
    ResolveRegexes,
    SetTimer,
    Ticket,
    TimerKey,
)
from headrace_broker.coordinator.modern.regex import ResolvedRegex, resolve_regexes
from headrace_broker.coordinator.protocols import decide_timer
from headrace_broker.coordinator.records import GroupRecord, write_record
from headrace_broker.coordinator.shard import GroupShard, finish_loading, replay
from headrace_broker.coordinator.share.heartbeat import decide_initialized
from headrace_broker.protocol.errors import ApiError, DecodeError, ErrorCode
from headrace_broker.protocol.types import Offset, PartitionIndex, TimestampMs
from headrace_broker.server.clock import Clock
from headrace_broker.server.groups.group_driver_log import (
    EncodedRecord,
    OffsetsLog,
    encode_batches,
    record_bytes,
)
from headrace_broker.server.groups.group_transactions import replay_batches

log = structlog.get_logger(__name__)

ResponseT = TypeVar("ResponseT")
Initialize = Callable[[InitializeShareState], Awaitable[Mapping[UUID, frozenset[int]]]]
"""Creates share partitions' state; returns the partitions that have it now."""

_RELOAD_DELAY_S: Final = 1.0
_UNWRITTEN_MAX: Final = 10_000
_MATCHES_AT_ONCE: Final = 1_000  # a millisecond or two
# An event loop that was stuck this long could not read heartbeats either. They are still in the
# sockets, and get this much time to be read before any member's session expires.
_STALL_S: Final = 0.5


class ShardStatus(Enum):
    """Whether the partition's groups can be served."""

    LOADING = "loading"
    ACTIVE = "active"
    CLOSED = "closed"


@dataclass(slots=True)
class _Timer:
    deadline_s: float
    due_s: float
    """When the handle fires; uvloop's handle of a timer that is due at once does not know it."""
    handle: asyncio.Handle


@dataclass(slots=True)
class _Unwritten:
    """Records that wait for the log, and the responses that depend on them and all before them."""

    due_s: float
    """When the waiting responses time out, if the records are not committed by then."""
    records: list[EncodedRecord] = field(default_factory=list)
    replies: list[tuple[Ticket, Any]] = field(default_factory=list)
    turn: tuple[Ticket, Callable[[], Awaitable[Any]]] | None = None
    """Work with its own append, between all records before and all after it."""
    loaded_end: Offset | None = None
    """Where the log ended when it was loaded, in the place of records."""


class ShardDriver:
    """Owns a `GroupShard`, its timers, its waiting requests and its partition of the log."""

    def __init__(
        self,
        index: PartitionIndex,
        offsets_log: OffsetsLog,
        config: GroupConfig,
        clock: Clock,
        context: Callable[[str], ConsumerContext],
        initialize: Initialize,
    ) -> None:
        self.status = ShardStatus.LOADING
        self.shard = GroupShard(partition=index)
        self.log = offsets_log
        self._config = config
        self._clock = clock
        self._context = context
        self._initialize = initialize
        self._resolving: dict[str, asyncio.Task[None]] = {}
        self._initializing: dict[str, asyncio.Task[None]] = {}
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Ticket, asyncio.Future[Any]] = {}
        self._ticket_next = 0
        self._timers: dict[TimerKey, _Timer] = {}
        self._unwritten: deque[_Unwritten] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._late: asyncio.TimerHandle | None = None
        self._reloader: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """Replay the partition and start to serve it; a failed load is retried."""
        try:
            await self._load()
        except (ApiError, DecodeError, OSError) as error:
            log.warning("load failed", partition=self.shard.partition, error=str(error))
            self._load_later()

    def _load_later(self) -> None:
        if self.status is ShardStatus.LOADING:
            self._reloader = self._loop.create_task(self._load_again())

    async def _load_again(self) -> None:
        await asyncio.sleep(_RELOAD_DELAY_S)
        await self.load()

    async def _load(self) -> None:
        shard = GroupShard(partition=self.shard.partition)
        async for chunk in self.log.read_all():
            replay_batches(shard, chunk)
            await asyncio.sleep(0)  # other partitions are being served in between
        if self.status is ShardStatus.LOADING:
            self.shard = shard
            self.status = ShardStatus.ACTIVE
            # What was loaded may not be committed yet, and lost with this leader: no answer may
            # tell of it before it is.
            self._queue(_Unwritten(self._due_s(), loaded_end=self.log.end_offset))
            self.expect_nothing(finish_loading(shard))
            self.expect_nothing(
                finish_loading_modern_groups(shard, lambda key: self._context(key).config)
            )
            if shard.group_count:
                log.info("groups loaded", partition=shard.partition, groups=shard.group_count)

    def close(self) -> None:
        """Stop serving: waiting clients must look for the coordinator again."""
        self.status = ShardStatus.CLOSED
        for task in (self._writer, self._reloader):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self._abandon()

    def check_active(self) -> None:
        """Raise ApiError unless the shard can be served now."""
        if self.status is ShardStatus.LOADING:
            raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the groups are being loaded")
        if self.status is ShardStatus.CLOSED:
            raise ApiError(ErrorCode.NOT_COORDINATOR, "this broker does not coordinate the group")

    def check_room(self) -> None:
        """Raise ApiError unless the shard can be served now, and one more write may wait."""
        self.check_active()
        if len(self._unwritten) >= _UNWRITTEN_MAX:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the log is too slow")

    async def submit(
        self, response: type[ResponseT], decide: Callable[[Ticket], GroupDecision]
    ) -> ResponseT:
        """Decide, and return the response; raise ApiError with nothing applied.

        Responses come in the order of the decisions, each after all records decided before it.
        """
        self.check_room()
        self._ticket_next += 1
        ticket = Ticket(self._ticket_next)
        decision = decide(ticket)
        records = self._encode(decision)
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[ticket] = future
        self._carry_out(decision, records)
        return _checked(response, await future)

    def submit_now(
        self, response: type[ResponseT], decide: Callable[[Ticket], GroupDecision]
    ) -> ResponseT:
        """Decide a request without records: a slow append must not delay heartbeats."""
        self.check_active()
        decision = decide(Ticket(0))
        self._set_timers(decision)
        return _checked(response, decision.replies[0][1])

    async def take_turn(
        self, response: type[ResponseT], work: Callable[[], Awaitable[ResponseT]]
    ) -> ResponseT:
        """Have `work` write to the log after all earlier decisions, and before all later ones.

        Its exception goes to its caller alone: a refused append has changed nothing.
        """
        self.check_room()
        self._ticket_next += 1
        ticket = Ticket(self._ticket_next)
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[ticket] = future
        self._queue(_Unwritten(self._due_s(), turn=(ticket, work)))
        return _checked(response, await future)

    def keep_alive(self, decision: GroupDecision) -> None:
        """Set a decision's timers only: its records are written by themselves."""
        self._set_timers(decision)

    def now_ms(self) -> TimestampMs:
        """Return the timestamp for records written now."""
        return self._clock.now_ms()

    async def _take(self, ticket: Ticket, work: Callable[[], Awaitable[Any]]) -> None:
        try:
            made = await work()
        except ApiError as error:
            future = self._waiting.pop(ticket, None)
            if future is not None and not future.done():
                future.set_exception(error)
        else:
            self._answer([(ticket, made)])

    def expect_nothing(self, decision: GroupDecision) -> None:
        """Carry out a decision that no client waits for, such as expiry."""
        try:
            records = self._encode(decision)
        except ApiError as error:
            log.warning("records refused", partition=self.shard.partition, error=error.message)
        else:
            self._carry_out(decision, records)

    @property
    def _record_bytes_max(self) -> int:
        return min(self._config.record_bytes_max, self.log.record_bytes_max)

    def _encode(self, decision: GroupDecision) -> list[EncodedRecord]:
        """Encode a decision's records before it is carried out.

        Raises ApiError if the log would refuse one: that would reload all groups of the shard.
        """
        size_max = self._record_bytes_max
        records = [write_record(record) for record in decision.records]
        if all(record_bytes(record) <= size_max for record in records):
            return records
        if any(isinstance(record, GroupRecord) for record in decision.records):
            self._reload(self._unwritten)  # a classic group's state has changed already
        raise ApiError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"a record of __consumer_offsets would exceed {size_max} bytes",
        )

    def _carry_out(self, decision: GroupDecision, records: list[EncodedRecord]) -> None:
        for record in decision.records:
            replay(self.shard, record)
        self._set_timers(decision)
        for begun in decision.rebalances:
            log.info(
                "group rebalances",
                group=begun.group_id,
                generation=begun.generation,
                members=begun.members,
                reason=begun.reason,
            )
        for work in decision.resolutions:
            if work.group_id not in self._resolving:
                task = self._loop.create_task(self._resolve(work))
                self._resolving[work.group_id] = task
        for wanted in decision.initializations:
            if wanted.group_id not in self._initializing:
                made = self._loop.create_task(self._initialize_share(wanted))
                self._initializing[wanted.group_id] = made
        if not records and not self._unwritten:
            self._answer(decision.replies)
            return
        self._queue(_Unwritten(self._due_s(), records, decision.replies))

    def _due_s(self) -> float:
        return self._loop.time() + self._config.commit_timeout_ms / 1000

    def _queue(self, unwritten: _Unwritten) -> None:
        self._unwritten.append(unwritten)
        if self._writer is None:
            self._writer = self._loop.create_task(self._write())
        if self._late is None:
            self._late = self._loop.call_at(unwritten.due_s, self._give_up)

    def _give_up(self) -> None:
        """Time out responses whose records are not committed in time: no client waits forever.

        The records stay in flight, as in Kafka: whether they will be committed is unknown.
        """
        self._late = None
        now_s = self._loop.time()
        for item in self._unwritten:
            if item.due_s > now_s:
                self._late = self._loop.call_at(item.due_s, self._give_up)
                return
            tickets = [ticket for ticket, _ in item.replies]
            if item.turn is not None:
                tickets.append(item.turn[0])
            for ticket in tickets:
                future = self._waiting.pop(ticket, None)
                if future is not None and not future.done():
                    future.set_exception(
                        ApiError(
                            ErrorCode.COORDINATOR_NOT_AVAILABLE,
                            "not committed in offsets.commit.timeout.ms; its outcome is unknown",
                        )
                    )

    async def _resolve(self, work: ResolveRegexes) -> None:
        """Match a group's regular expressions in small steps, and serve requests in between."""
        shard = self.shard
        try:
            context = self._context(work.group_id)
            names = list(context.topics.by_name)
            step = max(1, _MATCHES_AT_ONCE // len(work.patterns))
            found = {pattern: set[str]() for pattern in work.patterns}
            for start in range(0, len(names), step):
                part = resolve_regexes(work.patterns, names[start : start + step], 0, 0)
                for pattern, resolved in part.items():
                    found[pattern] |= resolved.topics
                await asyncio.sleep(0)
            version = context.topics.version
            resolved_all = {
                pattern: ResolvedRegex(
                    topics=frozenset(topics), version=version, timestamp_ms=context.now_ms
                )
                for pattern, topics in found.items()
            }
        finally:
            self._resolving.pop(work.group_id, None)
        if self.status is ShardStatus.ACTIVE and self.shard is shard:
            context = self._context(work.group_id)
            self.expect_nothing(decide_regexes(shard, work.group_id, resolved_all, context))

    async def _initialize_share(self, wanted: InitializeShareState) -> None:
        """Have share partitions' state created, then assign them."""
        shard = self.shard
        try:
            made = await self._initialize(wanted)
        finally:
            self._initializing.pop(wanted.group_id, None)
        if self.status is ShardStatus.ACTIVE and self.shard is shard:
            context = self._context(wanted.group_id)
            self.expect_nothing(decide_initialized(shard, wanted.group_id, made, context))

    async def wait_initialized(self, group_id: str, timeout_s: float) -> bool:
        """Wait while share partitions' state is created; return False if none is being created."""
        task = self._initializing.get(group_id)
        if task is None:
            return False
        await asyncio.wait([task], timeout=timeout_s)
        return True

    async def _write(self) -> None:
        """Write all waiting records in one batch: under load, commits share an append.

        Ends where they are abandoned, for whatever reason, while one is being written.
        """
        unwritten = self._unwritten
        try:
            while unwritten is self._unwritten and unwritten:
                done = await self._write_next(unwritten)
                if unwritten is self._unwritten:
                    for item in done:
                        unwritten.popleft()
                        self._answer(item.replies)
        except ApiError as error:
            # Too few in-sync replicas, or a new leader: no bug, but memory is ahead of the log.
            log.warning(
                "append to __consumer_offsets refused",
                partition=self.shard.partition,
                error=str(error),
            )
            self._reload(unwritten)
        except Exception:
            # Whatever failed, memory is ahead of the log now.
            log.exception("append to __consumer_offsets failed", partition=self.shard.partition)
            self._reload(unwritten)
        finally:
            if unwritten is self._unwritten:
                self._writer = None

    async def _write_next(self, unwritten: deque[_Unwritten]) -> list[_Unwritten]:
        """Write what can be written together; return it."""
        first = unwritten[0]
        if first.turn is not None:
            await self._take(*first.turn)
            return [first]
        if first.loaded_end is not None:
            await self.log.wait_committed(first.loaded_end)
            return [first]
        taken = list(takewhile(lambda item: item.turn is None, unwritten))
        units = [item.records for item in taken]
        for batch in encode_batches(units, self._clock.now_ms(), self._record_bytes_max):
            await self.log.append(batch)
            if unwritten is not self._unwritten:
                break
        return taken

    def _answer(self, replies: list[tuple[Ticket, Any]]) -> None:
        for ticket, response in replies:
            future = self._waiting.pop(ticket, None)
            if future is not None and not future.done():  # done: the client is gone
                future.set_result(response)

    def _reload(self, unwritten: deque[_Unwritten]) -> None:
        """Discard memory, which is ahead of the log, and load the committed state again.

        Not where that has been done since, or the shard was closed.
        """
        if unwritten is not self._unwritten or self.status is ShardStatus.CLOSED:
            return
        self.status = ShardStatus.LOADING
        self._abandon()
        self._load_later()

    def _abandon(self) -> None:
        for timer in self._timers.values():
            timer.handle.cancel()
        self._timers.clear()
        if self._late is not None:
            self._late.cancel()
            self._late = None
        for task in [*self._resolving.values(), *self._initializing.values()]:
            task.cancel()
        self._unwritten = deque()
        self._writer = None
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(
                    ApiError(ErrorCode.NOT_COORDINATOR, "the group's coordinator changed")
                )

    def _set_timers(self, decision: GroupDecision) -> None:
        for effect in decision.timers:
            if isinstance(effect, SetTimer):
                if effect.unless_set and effect.key in self._timers:
                    continue
                self._set_timer(effect.key, self._loop.time() + effect.delay_ms / 1000)
            elif (timer := self._timers.pop(effect.key, None)) is not None:
                timer.handle.cancel()

    def _set_timer(self, key: TimerKey, deadline_s: float) -> None:
        timer = self._timers.get(key)
        if timer is not None and timer.due_s <= deadline_s:
            # A heartbeat only moves the deadline: the event loop's heap is touched once per
            # session.
            timer.deadline_s = deadline_s
            return
        if timer is not None:
            timer.handle.cancel()
        handle = self._loop.call_at(deadline_s, self._fire, key)
        self._timers[key] = _Timer(deadline_s, deadline_s, handle)

    def _fire(self, key: TimerKey) -> None:
        timer = self._timers.pop(key)
        now_s = self._loop.time()
        if timer.deadline_s > now_s:
            self._set_timer(key, timer.deadline_s)
        elif now_s - timer.due_s > _STALL_S:
            self._set_timer(key, now_s + _STALL_S)
        else:
            self.expect_nothing(decide_timer(self.shard, key, self._context(key.group_id)))


def _checked(response: type[ResponseT], reply: object) -> ResponseT:
    if not isinstance(reply, response):
        raise TypeError(f"{type(reply).__name__} answers a request for {response.__name__}")
    return reply
