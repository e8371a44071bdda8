"""The owner of one partition's transactional ids: carries out the pure coordinator's decisions.

Unlike a group's state, a transaction's state changes only once its record is committed. Until then
the id is held, and other requests for it must wait. If leadership is lost, the outcome of a record
is unknown, and its id stays held until the partition is unloaded.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from enum import Enum
from functools import partial
from typing import Final, Protocol, TypeVar

import structlog

from headrace_broker.coordinator.transactions.end import decide_complete
from headrace_broker.coordinator.transactions.expiry import (
    decide_expiry,
    decide_timeout,
    timed_out,
)
from headrace_broker.coordinator.transactions.records import TransactionRecord
from headrace_broker.coordinator.transactions.shard import (
    Circumstances,
    ProducerIdRequiredError,
    TransactionDecision,
    TransactionShard,
    replay,
)
from headrace_broker.coordinator.transactions.transaction import (
    TopicPartition,
    Transaction,
    TransactionVersion,
)
from headrace_broker.protocol.errors import ApiError, DecodeError, ErrorCode
from headrace_broker.protocol.types import LeaderEpoch, PartitionIndex, ProducerId
from headrace_broker.server.transactions.state_log import StateLog, decode_records, encode_record

log = structlog.get_logger(__name__)

ResponseT = TypeVar("ResponseT")
Settled = Callable[[ApiError | None], None]

_RETRY_DELAY_S: Final = 0.1
_RELOAD_DELAY_S: Final = 1.0
_NOT_AVAILABLE: Final = frozenset(
    {
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


class Host(Protocol):
    """What a shard needs from its coordinator."""

    @property
    def version(self) -> TransactionVersion:
        """The cluster's level of `transaction.version`."""
        ...

    def circumstances(self, fresh_producer_id: ProducerId | None) -> Circumstances:
        """Return what a decision may depend on now."""
        ...

    async def draw_producer_id(self) -> ProducerId:
        """Return an unused producer id; raise ApiError."""
        ...

    def send_markers(
        self, shard: "ShardDriver", transaction: Transaction, partitions: Collection[TopicPartition]
    ) -> None:
        """Have markers written; `shard.note_marked` is called for those that are."""


class Status(Enum):
    """Whether the partition's ids can be served."""

    LOADING = "loading"
    ACTIVE = "active"
    CLOSED = "closed"


class ShardDriver:
    """Owns a `TransactionShard` and its partition of the log, for one leader epoch."""

    def __init__(self, index: PartitionIndex, state_log: StateLog, host: Host) -> None:
        self.status = Status.LOADING
        self.shard = TransactionShard(partition=index)
        self._log = state_log
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._changed: dict[str, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def coordinator_epoch(self) -> LeaderEpoch:
        """The epoch that fences the markers of former coordinators."""
        return self._log.coordinator_epoch

    # ---- loading

    def load(self) -> None:
        """Begin to replay the partition; it is served once all its records are committed."""
        self._spawn(self._load())

    async def _load(self) -> None:
        while self.status is Status.LOADING:
            try:
                await self._replay()
                break
            except (ApiError, DecodeError, OSError) as error:
                log.warning("load failed", partition=self.shard.partition, error=str(error))
                await asyncio.sleep(_RELOAD_DELAY_S)

    async def _replay(self) -> None:
        shard = TransactionShard(partition=self.shard.partition)
        async for chunk in self._log.read_all():
            for record in decode_records(chunk):
                replay(shard, record)
            await asyncio.sleep(0)  # other partitions are being served in between
        await self._log.wait_committed()
        if self.status is not Status.LOADING:
            return
        self.shard = shard
        self.status = Status.ACTIVE
        if shard.transactions:
            log.info("transactions loaded", partition=shard.partition, ids=len(shard.transactions))
        for transaction in list(shard.prepared()):
            self._go_on(transaction.transactional_id)

    def close(self) -> None:
        """Stop serving: waiting clients must look for the coordinator again."""
        self.status = Status.CLOSED
        for task in self._tasks:
            task.cancel()
        for future in self._changed.values():
            if not future.done():
                future.set_result(None)
        self._changed.clear()

    def check_active(self) -> None:
        """Raise ApiError unless the shard can be served now."""
        if self.status is Status.LOADING:
            raise ApiError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the transactions are being loaded"
            )
        if self.status is Status.CLOSED:
            raise not_coordinator()

    # ---- decisions

    async def submit(
        self, decide: Callable[[Circumstances], TransactionDecision[ResponseT]]
    ) -> ResponseT:
        """Decide, and return the answer once its record is committed; raise ApiError."""
        self.check_active()
        try:
            decision = decide(self._host.circumstances(None))
        except ProducerIdRequiredError:
            fresh = await self._host.draw_producer_id()
            self.check_active()
            decision = decide(self._host.circumstances(fresh))
        if decision.record is not None:
            committed: asyncio.Future[ApiError | None] = self._loop.create_future()
            self._append(decision.record, partial(_resolve, committed))
            seconds = self._host.circumstances(None).config.commit_timeout_ms / 1000
            late = self._loop.call_later(seconds, _resolve, committed, not_in_time())
            try:
                error = await committed
            finally:
                late.cancel()
            if error is not None:
                raise error
        if decision.error is not ErrorCode.NONE:
            raise ApiError(decision.error)
        return decision.response

    async def wait_changed(self, transactional_id: str, timeout_s: float) -> None:
        """Return at the id's next transition, or when the time is over."""
        future = self._changed.get(transactional_id)
        if future is None:
            future = self._changed[transactional_id] = self._loop.create_future()
        await asyncio.wait([future], timeout=timeout_s)

    def abort_timed_out(self) -> bool:
        """Abort overdue transactions; never leaves more to do."""
        if self.status is Status.ACTIVE:
            now_ms = self._host.circumstances(None).now_ms
            for name in timed_out(self.shard, now_ms):
                self._spawn(self._abort(name))
        return False

    async def _abort(self, name: str) -> None:
        def decide(circumstances: Circumstances) -> TransactionDecision[None]:
            found = decide_timeout(self.shard, name, circumstances)
            return found if found is not None else TransactionDecision(response=None)

        try:
            await self.submit(decide)
        except ApiError as error:
            log.warning("abort failed, and is tried again", id=name, error=str(error))
        else:
            log.info("transaction aborted: it took too long", id=name)

    def expire(self) -> bool:
        """Remove some unused ids; return whether there may be more."""
        if self.status is not Status.ACTIVE:
            return False
        records = decide_expiry(self.shard, self._host.circumstances(None))
        for record in records:
            try:
                self._append(record, _ignore)
            except ApiError as error:
                log.warning("expiry failed, and is tried again", error=str(error))
                return False
        return bool(records)

    # ---- the log

    def _append(self, record: TransactionRecord, settled: Settled) -> None:
        """Hold the id and append; raise ApiError with nothing appended and the id released."""
        self.shard.reserve(record)
        now_ms = self._host.circumstances(None).now_ms
        try:
            batch = encode_record(record, self._host.version, now_ms)
            self._log.append(batch, partial(self._settle, record, settled))
        except ApiError as error:
            self.shard.abandon(record)
            raise _refusal(error) from error

    def _settle(self, record: TransactionRecord, settled: Settled, error: ApiError | None) -> None:
        if error is not None or self.status is not Status.ACTIVE:
            # The record may be in the log: the id stays held until the next leader has loaded it.
            settled(not_coordinator())
            return
        self.shard.apply(record)
        name = record.transactional_id
        changed = self._changed.pop(name, None)
        if changed is not None and not changed.done():
            changed.set_result(None)
        settled(None)
        if name in self.shard.unmarked:
            self._go_on(name)

    # ---- after the outcome is decided

    def note_marked(self, transaction: Transaction, partitions: Collection[TopicPartition]) -> None:
        """Note this transaction's markers as written; the last one completes it."""
        name = transaction.transactional_id
        if self.wants_markers(transaction) and self.shard.note_marked(name, partitions):
            self._complete(name)

    def wants_markers(self, transaction: Transaction) -> bool:
        """Whether the transaction still waits for its markers."""
        return (
            self.status is Status.ACTIVE
            and self.shard.transactions.get(transaction.transactional_id) is transaction
        )

    def _go_on(self, transactional_id: str) -> None:
        left = self.shard.unmarked.get(transactional_id)
        if left:
            transaction = self.shard.transactions[transactional_id]
            self._host.send_markers(self, transaction, frozenset(left))
        else:
            self._complete(transactional_id)

    def _complete(self, transactional_id: str) -> None:
        if self.status is not Status.ACTIVE:
            return
        decision = decide_complete(self.shard, transactional_id, self._host.circumstances(None))
        if decision is None or decision.record is None:
            return
        try:
            self._append(decision.record, _ignore)
        except ApiError as error:
            log.warning("completion is tried again", id=transactional_id, error=str(error))
            self._loop.call_later(_RETRY_DELAY_S, self._complete, transactional_id)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def not_coordinator() -> ApiError:
    """Return NOT_COORDINATOR: the client must look for the coordinator again."""
    return ApiError(
        ErrorCode.NOT_COORDINATOR, "this broker does not coordinate the transactional id"
    )


def not_in_time() -> ApiError:
    """Return the error for a record that may still be committed; its id is held until then."""
    return ApiError(
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        "not committed in offsets.commit.timeout.ms; its outcome is unknown",
    )


def _refusal(error: ApiError) -> ApiError:
    """Return the client's error for an append that the log refused (TransactionStateManager)."""
    if error.code in _NOT_AVAILABLE:
        return ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
    if error.code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        return ApiError(ErrorCode.INVALID_REQUEST, f"too many partitions: {error.message}")
    return ApiError(ErrorCode.NOT_COORDINATOR, error.message)


def _resolve(future: "asyncio.Future[ApiError | None]", error: ApiError | None) -> None:
    if not future.done():
        future.set_result(error)


def _ignore(_: ApiError | None) -> None:
    """Ignore the outcome: if the record was not written, this or another broker retries."""
