"""The owner of one partition's groups: performs what the pure coordinator decides.

State moves the moment something is decided, and the answer waits until the records are committed,
as in Kafka's coordinator runtime. The alternative, moving state at commit, would make two requests
that arrive within one commit decide on the same old state. The price is that a failed append leaves
memory ahead of the log; then the memory is thrown away and the partition is loaded again.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

import structlog

from headrace_broker.coordinator.config import GroupConfig
from headrace_broker.coordinator.decision import Decision, SetTimer, Ticket, TimerKey
from headrace_broker.coordinator.records import CoordinatorRecord
from headrace_broker.coordinator.shard import GroupShard, finish_loading, replay
from headrace_broker.coordinator.timers import decide_timer
from headrace_broker.protocol.errors import ApiError, DecodeError, ErrorCode
from headrace_broker.protocol.types import PartitionIndex
from headrace_broker.server.clock import Clock
from headrace_broker.server.group_driver_log import OffsetsLog, decode_batches, encode_batches

log = structlog.get_logger(__name__)

ResponseT = TypeVar("ResponseT")

_RELOAD_DELAY_S: Final = 1.0
_UNWRITTEN_MAX: Final = 10_000
# A loop that was held up this long could not read heartbeats either: they are in the sockets, and
# get this much time to be read before anybody is declared dead.
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
    """When the handle fires; uvloop's handle of what is due at once cannot say it."""
    handle: asyncio.Handle


@dataclass(slots=True)
class _Unwritten:
    """What waits for the log: records, and the answers that depend on them and all before."""

    records: list[CoordinatorRecord] = field(default_factory=list)
    replies: list[tuple[Ticket, Any]] = field(default_factory=list)


class ShardDriver:
    """Owns a `GroupShard`, its timers, its parked requests and its partition of the log."""

    def __init__(
        self, index: PartitionIndex, offsets_log: OffsetsLog, config: GroupConfig, clock: Clock
    ) -> None:
        self.status = ShardStatus.LOADING
        self.shard = GroupShard(partition=index)
        self._log = offsets_log
        self._config = config
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Ticket, asyncio.Future[Any]] = {}
        self._ticket_next = 0
        self._timers: dict[TimerKey, _Timer] = {}
        self._unwritten: deque[_Unwritten] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._reloader: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """Replay the partition and start to serve it; one that cannot be read is tried again."""
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
        async for chunk in self._log.read_all():
            for record in decode_batches(chunk):
                replay(shard, record)
            await asyncio.sleep(0)  # other partitions are being served meanwhile
        if self.status is ShardStatus.LOADING:
            self.shard = shard
            self.status = ShardStatus.ACTIVE
            self._carry_out(finish_loading(shard))
            if shard.groups:
                log.info("groups loaded", partition=shard.partition, groups=len(shard.groups))

    def close(self) -> None:
        """Stop serving: whoever waits must look for the coordinator again."""
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

    async def submit(
        self, response: type[ResponseT], decide: Callable[[Ticket], Decision]
    ) -> ResponseT:
        """Decide, and return the answer; raise ApiError with nothing applied.

        Answers come in the order of the decisions, each after all records decided before it.
        """
        self.check_active()
        if len(self._unwritten) >= _UNWRITTEN_MAX:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the log is too slow")
        self._ticket_next += 1
        ticket = Ticket(self._ticket_next)
        decision = decide(ticket)
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[ticket] = future
        self._carry_out(decision)
        return _checked(response, await future)

    def submit_now(
        self, response: type[ResponseT], decide: Callable[[Ticket], Decision]
    ) -> ResponseT:
        """Decide what needs no record: heartbeats must not be held up by a slow append."""
        self.check_active()
        decision = decide(Ticket(0))
        self._set_timers(decision)
        return _checked(response, decision.replies[0][1])

    def expect_nothing(self, decision: Decision) -> None:
        """Carry out what nobody waits for, as expiry."""
        self._carry_out(decision)

    def _carry_out(self, decision: Decision) -> None:
        for record in decision.records:
            replay(self.shard, record)
        self._set_timers(decision)
        if not decision.records and not self._unwritten:
            self._answer(decision.replies)
            return
        self._unwritten.append(_Unwritten(decision.records, decision.replies))
        if self._writer is None:
            self._writer = self._loop.create_task(self._write())

    async def _write(self) -> None:
        """Write what waits, all of it in one batch: commits under load share an append."""
        try:
            while self._unwritten:
                taken = list(self._unwritten)
                records = [record for item in taken for record in item.records]
                size_max = self._config.record_bytes_max
                for batch in encode_batches(records, self._clock.now_ms(), size_max):
                    await self._log.append(batch)
                for item in taken:
                    self._unwritten.popleft()
                    self._answer(item.replies)
        except ApiError as error:
            # Too few replicas in sync, or another leader: no fault of ours, but memory is ahead.
            log.warning(
                "append to __consumer_offsets refused",
                partition=self.shard.partition,
                error=str(error),
            )
            self._reload()
        except Exception:
            # Whatever it was, memory is ahead of the log now.
            log.exception("append to __consumer_offsets failed", partition=self.shard.partition)
            self._reload()
        finally:
            self._writer = None

    def _answer(self, replies: list[tuple[Ticket, Any]]) -> None:
        for ticket, response in replies:
            future = self._waiting.pop(ticket, None)
            if future is not None and not future.done():  # done: the client is gone
                future.set_result(response)

    def _reload(self) -> None:
        """Memory is ahead of the log: forget it and start over from what is committed."""
        self.status = ShardStatus.LOADING
        self._abandon()
        self._load_later()

    def _abandon(self) -> None:
        for timer in self._timers.values():
            timer.handle.cancel()
        self._timers.clear()
        self._unwritten.clear()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(
                    ApiError(ErrorCode.NOT_COORDINATOR, "the group's coordinator changed")
                )

    def _set_timers(self, decision: Decision) -> None:
        for effect in decision.timers:
            if isinstance(effect, SetTimer):
                self._set_timer(effect.key, self._loop.time() + effect.delay_ms / 1000)
            elif (timer := self._timers.pop(effect.key, None)) is not None:
                timer.handle.cancel()

    def _set_timer(self, key: TimerKey, deadline_s: float) -> None:
        timer = self._timers.get(key)
        if timer is not None and timer.due_s <= deadline_s:
            # A heartbeat only moves the deadline: the loop's heap is touched once per session.
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
            self._carry_out(decide_timer(self.shard, self._config, key, self._clock.now_ms()))


def _checked(response: type[ResponseT], reply: object) -> ResponseT:
    if not isinstance(reply, response):
        raise TypeError(f"{type(reply).__name__} answers a request for {response.__name__}")
    return reply
