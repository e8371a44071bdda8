"""Fetches the records of the partitions that this broker follows from their leaders.

Each source broker has one fetch session with all partitions that follow it. A fetch waits at the
leader until there are records. The fetcher appends them and at once sends the next fetch, whose
offsets confirm the append: that is what commits records. A partition that begins to follow a source
while a fetch waits there does not wait for that fetch: the next request overtakes it (see
`Round.number`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import structlog

from headrace_broker.log.descriptor_shortage import OutOfDescriptorsError
from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.codec import encoder
from headrace_broker.protocol.errors import ApiError, DecodeError, ErrorCode
from headrace_broker.protocol.fast_fetch import (
    FAST_VERSION,
    Asked,
    Found,
    Request,
    read_answer,
    write_request,
)
from headrace_broker.protocol.messages import fetch
from headrace_broker.protocol.types import NodeId
from headrace_broker.replication.fetch_state import FIRST_EPOCH, FetchState, Position, Round
from headrace_broker.replication.follower import EpochEnd
from headrace_broker.server.follower.fetch_topics import Key, fetch_topics, forgotten_topics
from headrace_broker.server.partitions.partition import Partition
from headrace_broker.server.partitions.replica_host import ReplicaHost
from headrace_broker.server.peers.peer_connection import PeerConnection, decode_answer
from headrace_broker.server.peers.peers import (
    Lane,
    PeerConnections,
    PeerUnavailable,
    common_version,
)

log = structlog.get_logger()

ToSync = list[tuple[Key, Partition]]
"""Partitions in an answer whose records count only once they are on disk."""
_ROUNDS_MAX = 2  # the one that waits at the leader, and the one that overtakes it
_TAGS_AT = 4  # in an answer's header, behind the correlation id
_BACKOFF_SECONDS_MIN = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class FetcherConfig:
    """Kafka's replica.fetch settings."""

    wait_max_ms: int = 500
    max_bytes: int = 1024 * 1024
    response_max_bytes: int = 10 * 1024 * 1024
    backoff_ms: int = 200
    timeout_ms: int = 5000
    """How long beyond the wait an answer may take; then the fetcher asks a hung source again."""


class FetchedPartitions:
    """The partitions that a fetcher asks for, their offsets, and those that wait for a retry.

    `schedule` is called when there is something to ask for, `spawn` with a coroutine that waits.
    """

    def __init__(
        self,
        source: NodeId,
        host: ReplicaHost,
        config: FetcherConfig,
        *,
        schedule: Callable[[], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._source = source
        self._host = host
        self._config = config
        self._schedule = schedule
        self._spawn = spawn
        self.state: FetchState[Key] = FetchState()
        self._partitions: dict[Key, Partition] = {}
        self._delayed: dict[Key, None] = {}
        self._backoff = 0.0
        self._retry_delayed: asyncio.TimerHandle | None = None

    def add(self, key: Key, partition: Partition) -> None:
        """Fetch a partition from its log end on."""
        self._partitions[key] = partition
        if _is_durable(partition):
            self._ask(key, partition)
        else:
            # A fetch offset says what this replica has, and that counts only once it is synced.
            self._spawn(self._add_when_durable(key, partition))

    async def _add_when_durable(self, key: Key, partition: Partition) -> None:
        if partition.flushing is not None:
            await partition.flushing.wait_durable()
        # Where there is more again that is not on disk, it was asked for by another way meanwhile.
        if self._partitions.get(key) is partition and _is_durable(partition):
            self._ask(key, partition)

    def _ask(self, key: Key, partition: Partition) -> None:
        self._delayed.pop(key, None)
        self.state.release(key)
        self.state.set(key, partition.position())
        self._schedule()

    def remove(self, key: Key) -> None:
        """Stop fetching a partition."""
        self._partitions.pop(key, None)
        self._delayed.pop(key, None)
        self.state.remove(key)

    def close(self) -> None:
        """Stop the retries."""
        if self._retry_delayed is not None:
            self._retry_delayed.cancel()

    def back_off(self) -> float:
        """Return how many seconds to wait; the pause doubles until a fetch succeeds."""
        self._backoff = min(
            max(self._backoff * 2, _BACKOFF_SECONDS_MIN), self._config.backoff_ms / 1000
        )
        return self._backoff

    def went_well(self) -> None:
        """Reset the pause: the next failure waits for a short time only."""
        self._backoff = 0.0

    # answers

    def take(
        self, key: Key, number: int, data: Found | fetch.PartitionData, to_sync: ToSync
    ) -> None:
        """Apply what the answer to request `number` says about a partition.

        A partition whose records count only once they are on disk is added to `to_sync`.
        """
        position = self.state.answered(key, number)
        partition = self._partitions.get(key)
        if position is None or partition is None:
            return
        if partition.leading is not None or partition.leader_epoch != position.leader_epoch:
            return  # newer metadata came; `follow` has been or will be called
        try:
            if type(data) is Found or self._is_usual(key, partition, data):
                self._append(key, partition, position, data)
        except OutOfDescriptorsError:
            self._delay(key)
        except ApiError as error:
            self._warn(partition, error)
            self._delay(key)
        except LogDirectoryFailure as failure:
            self._host.on_failure(failure)  # which removes the partition here
            return
        if partition.flushing is not None:
            if key in self.state and not _is_durable(partition):
                # Until the fsync, no request for another partition may report this one's offset.
                self.state.hold(key)
            to_sync.append((key, partition))

    def durable(self, key: Key, partition: Partition) -> None:
        """An fsync has ended: report the partition's offset, if all of its log is on disk."""
        if self._partitions.get(key) is partition and _is_durable(partition):
            self.state.release(key)

    def _is_usual(self, key: Key, partition: Partition, data: Any) -> bool:
        """Whether data has neither an error nor a diverging log; else handle that."""
        diverging = data.diverging_epoch
        if data.error_code != ErrorCode.NONE:
            self._refused(key, partition, data)
        elif diverging.epoch >= 0:
            end = EpochEnd(diverging.epoch, diverging.end_offset)
            self._truncate(key, partition, end, data.log_start_offset)
        else:
            return True
        return False

    def _append(
        self,
        key: Key,
        partition: Partition,
        position: Position,
        data: Found | fetch.PartitionData,
    ) -> None:
        records = data.records
        if records:
            if partition.log.log_end_offset != position.fetch_offset:
                self.state.set(key, partition.position())
                return
            partition.append_as_follower(records)
            if partition.is_follower_throttled:
                self._host.follower_throttle.record(len(records))
            if self._is_over_quota(partition):
                self._delay(key)
            else:
                self.state.set(key, partition.position())
        partition.follow_high_watermark(data.high_watermark, data.log_start_offset)
        if partition.log.log_start_offset != position.log_start_offset and key in self.state:
            # DeleteRecords may wait for this at the leader (KIP-107).
            self.state.set(key, partition.position())

    def _truncate(
        self, key: Key, partition: Partition, diverging: EpochEnd, leader_log_start: int
    ) -> None:
        before, high_watermark = partition.position(), partition.high_watermark
        end = partition.truncate(diverging, leader_log_start)
        log.info(
            "log truncated to the leader's",
            topic=partition.topic,
            partition=partition.index,
            leader=self._source,
            epoch=diverging.epoch,
            leader_end=diverging.end_offset,
            log_end_before=before.fetch_offset,
            log_end=end,
            high_watermark_before=high_watermark,
        )
        if partition.position() == before:
            self._delay(key)  # the answer would be the same
        else:
            self.state.set(key, partition.position())

    def _refused(self, key: Key, partition: Partition, data: fetch.PartitionData) -> None:
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            start, own = data.log_start_offset, partition.log
            if start > own.log_end_offset or (start >= 0 and own.leader_epochs.latest < 0):
                log.info(
                    "log restarts at the leader's start",
                    topic=partition.topic,
                    partition=partition.index,
                    leader=self._source,
                    log_end_before=own.log_end_offset,
                    leader_log_start=start,
                )
                partition.restart_at(start)
                self.state.remove(key)
                self._ask(key, partition)
                return
            if own.leader_epochs.latest > partition.leader_epoch:
                # No leader had such an epoch: the disk changed it. The leader has counted nothing
                # of this log since, so that it may be cut there, as recovery cuts a torn tail.
                end = EpochEnd(partition.leader_epoch, own.log_end_offset)
                self._truncate(key, partition, end, start)
                return
            self._warn(partition, ApiError(ErrorCode.OFFSET_OUT_OF_RANGE))
        self._delay(key)

    def _warn(self, partition: Partition, error: ApiError) -> None:
        log.warning(
            "partition cannot follow",
            topic=partition.topic,
            partition=partition.index,
            leader=self._source,
            code=error.code.name,
            cause=error.message,
        )

    def _delay(self, key: Key) -> None:
        """Ask again after a pause, or when the metadata changes."""
        self.state.remove(key)
        self._delayed[key] = None
        if self._retry_delayed is None:
            loop = asyncio.get_running_loop()
            self._retry_delayed = loop.call_later(self.back_off(), self._ask_delayed)

    def _ask_delayed(self) -> None:
        self._retry_delayed = None
        for key in list(self._delayed):
            if self._is_over_quota(self._partitions[key]):
                self._delay(key)
            else:
                self.add(key, self._partitions[key])

    def _is_over_quota(self, partition: Partition) -> bool:
        """Whether this out-of-sync replica has to wait because of the throttle (KIP-73)."""
        return (
            partition.is_follower_throttled
            and self._host.node_id not in partition.in_sync_replicas
            and self._host.follower_throttle.is_exceeded(self._host.now_ms())
        )


def _is_durable(partition: Partition) -> bool:
    """Whether the replica counts up to its log end."""
    return partition.durable_end >= partition.log.log_end_offset


class ReplicaFetcher:
    """The fetcher of one source broker, and the partitions that follow it."""

    def __init__(
        self, source: NodeId, host: ReplicaHost, peers: PeerConnections, config: FetcherConfig
    ) -> None:
        self._source = source
        self._host = host
        self._peers = peers
        self._config = config
        self._loop = asyncio.get_running_loop()
        self.partitions = FetchedPartitions(
            source, host, config, schedule=self._schedule, spawn=self._spawn
        )
        self._state = self.partitions.state
        self._tasks: set[asyncio.Task[None]] = set()
        self._connection: PeerConnection | None = None
        self._version = 0
        self._image: Any = None  # the metadata with which the connection was chosen
        self._timeout_ms = config.wait_max_ms + config.timeout_ms
        self._sent: dict[_Exchange, None] = {}
        self._watchdog: asyncio.TimerHandle | None = None
        self._rounds = 0
        self._generation = 0  # of the session: answers of an earlier one are ignored
        self._retry: asyncio.TimerHandle | None = None
        self._heard_at = self._loop.time()
        self._is_scheduled = False
        self._is_closed = False

    def follow(self, key: Key, partition: Partition) -> None:
        """Fetch a partition from the source, from its log end on."""
        if not len(self._state):
            self._heard_at = self._loop.time()  # no fetch was sent since the last answer
        self.partitions.add(key, partition)

    @property
    def silent_seconds(self) -> float:
        """How long the source has not answered a fetch."""
        return self._loop.time() - self._heard_at

    async def close(self) -> None:
        """Stop fetching."""
        self._is_closed = True
        self._generation += 1
        self.partitions.close()
        for timer in (self._retry, self._watchdog):
            if timer is not None:
                timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # requests

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._host.on_failure(error)

    def _schedule(self) -> None:
        """Send soon: the same metadata change may bring more partitions."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._send_if_due)

    def _send_if_due(self) -> None:
        self._is_scheduled = False
        if self._is_closed or self._retry is not None or not len(self._state):
            return
        state = self._state
        if self._rounds and not (
            state.is_dirty and state.session_id and self._rounds < _ROUNDS_MAX
        ):
            return
        self._rounds += 1
        round_ = state.take()
        connection = self._connection
        if connection is not None and connection.is_open and self._image is self._host.image:
            self._send(connection, round_)
        else:
            self._spawn(self._connect_and_send(round_, self._generation))

    async def _connect_and_send(self, round_: Round, generation: int) -> None:
        image = self._host.image
        try:
            connection = await self._peers.connect(self._source, Lane.FETCH, self._timeout_ms)
            version = common_version(connection, ApiKey.FETCH, fetch.FetchRequest)
        except PeerUnavailable as error:
            self.failed(generation, error)
            return
        if generation == self._generation:
            self._connection, self._version, self._image = connection, version, image
            self._send(connection, round_)

    def _send(self, connection: PeerConnection, round_: Round) -> None:
        exchange = _Exchange(self, connection, round_, self._generation, self._loop.time())
        try:
            connection.send(ApiKey.FETCH, self._version, self._body(round_), exchange)
        except PeerUnavailable as error:
            self.failed(self._generation, error)
            return
        self._sent[exchange] = None
        if self._watchdog is None:
            self._watchdog = self._loop.call_later(self._timeout_ms / 1000, self._watch)

    def _watch(self) -> None:
        """Close a connection on which no answer arrives: one timer checks every request."""
        self._watchdog = None
        if not self._sent or self._is_closed:
            return
        oldest = next(iter(self._sent))
        left = oldest.sent_at + self._timeout_ms / 1000 - self._loop.time()
        if left <= 0:
            # Not the newest connection, which may go to the source's new address.
            log.debug("fetch was not answered", source=self._source, within_ms=self._timeout_ms)
            oldest.connection.close()
            left = self._timeout_ms / 1000
        self._watchdog = self._loop.call_later(left, self._watch)

    def _body(self, round_: Round) -> list[Any]:
        if self._version == FAST_VERSION and round_.dirty and not round_.forgotten:
            config, host = self._config, self._host
            body = write_request(
                Request(
                    config.wait_max_ms,
                    config.response_max_bytes,
                    round_.session_id,
                    round_.epoch,
                    host.node_id,
                    host.broker_epoch,
                    [
                        Asked(key[0], key[1], epoch, offset, last_epoch, start, config.max_bytes)
                        for key, (offset, last_epoch, epoch, start) in round_.dirty
                    ],
                )
            )
            if body is not None:
                return [body]
        return encoder(fetch.FetchRequest, self._version)(self._request(round_))

    def _request(self, round_: Round) -> fetch.FetchRequest:
        config = self._config
        return fetch.FetchRequest(
            replica_state=fetch.ReplicaState(
                replica_id=self._host.node_id, replica_epoch=self._host.broker_epoch
            ),
            max_wait_ms=config.wait_max_ms,
            min_bytes=1,
            max_bytes=config.response_max_bytes,
            session_id=round_.session_id,
            session_epoch=round_.epoch,
            topics=fetch_topics(round_.dirty, config.max_bytes),
            forgotten_topics_data=forgotten_topics(round_.forgotten),
        )

    def _start_over(self, *, at_once: bool = False) -> None:
        """Open a new session, after a pause that grows with each failure."""
        self._generation += 1
        self._rounds = 0
        self._state.restart()
        if self._is_closed:
            return
        if at_once:
            self._schedule()
            return
        pause = self.partitions.back_off()
        if self._retry is None:
            self._retry = self._loop.call_later(pause, self._retry_now)

    def _retry_now(self) -> None:
        self._retry = None
        self._send_if_due()

    # answers

    def failed(self, generation: int, error: PeerUnavailable) -> None:
        """Handle a request that got no answer."""
        if generation == self._generation:
            log.debug("fetch failed", source=self._source, cause=str(error))
            self._start_over()

    def forget(self, exchange: _Exchange) -> None:
        """Stop waiting for an answer."""
        self._sent.pop(exchange, None)

    def give_up(self, error: BaseException) -> None:
        """Report that a log failed, or that there is a bug."""
        self._host.on_failure(error)

    def answered(self, exchange: _Exchange, frame: memoryview, *, is_borrowed: bool) -> None:
        """Apply an answer, and ask for more. Raises DecodeError or IndexError."""
        self._sent.pop(exchange, None)
        round_, generation = exchange.round, exchange.generation
        if generation != self._generation:
            return
        is_plain = self._version == FAST_VERSION and not frame[_TAGS_AT]
        usual = read_answer(frame, _TAGS_AT + 1) if is_plain else None
        to_sync: ToSync = []
        if usual is not None:
            session_id, found = usual
            for data in found:
                self.partitions.take(Key(data[0], data[1]), round_.number, data, to_sync)
        else:
            if is_borrowed:
                frame = memoryview(bytes(frame))
            response = decode_answer(frame, ApiKey.FETCH, self._version)
            if response.error_code != ErrorCode.NONE:
                self._session_refused(round_, response.error_code)
                return
            session_id = response.session_id
            for topic in response.responses:
                for data in topic.partitions:
                    key = Key(topic.topic_id.bytes, data.partition_index)
                    self.partitions.take(key, round_.number, data, to_sync)
        if round_.epoch == FIRST_EPOCH:
            self._state.session_id = session_id
        if to_sync:
            self._spawn(self._go_on_when_durable(to_sync, session_id, generation))
        else:
            self._go_on(session_id, generation)

    def _session_refused(self, round_: Round, code: int) -> None:
        is_lost = code in (
            ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
            ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        )
        log.debug("fetch refused", source=self._source, code=code)
        self._start_over(at_once=is_lost and round_.epoch != FIRST_EPOCH)

    async def _go_on_when_durable(self, to_sync: ToSync, session_id: int, generation: int) -> None:
        for key, partition in to_sync:
            # The fsyncs of all partitions run concurrently; the next fetch reports what is on disk.
            if partition.flushing is not None:
                await partition.flushing.wait_durable()
            self.partitions.durable(key, partition)
        self._go_on(session_id, generation)

    def _go_on(self, session_id: int, generation: int) -> None:
        if generation != self._generation:
            if self._state.is_dirty:
                self._schedule()
            return
        self._rounds -= 1
        if not session_id:
            self._start_over()  # without a session the leader answers at once: pause
            return
        self.partitions.went_well()
        self._heard_at = self._loop.time()
        self._send_if_due()


class _Exchange:
    """One request of a fetcher in flight; it receives the answer."""

    __slots__ = ("_fetcher", "connection", "generation", "round", "sent_at")

    def __init__(
        self,
        fetcher: ReplicaFetcher,
        connection: PeerConnection,
        round_: Round,
        generation: int,
        sent_at: float,
    ) -> None:
        self._fetcher = fetcher
        self.connection = connection
        self.round = round_
        self.generation = generation
        self.sent_at = sent_at

    def answered(self, frame: memoryview, *, is_borrowed: bool) -> None:
        """Apply the answer."""
        fetcher = self._fetcher
        try:
            fetcher.answered(self, frame, is_borrowed=is_borrowed)
        except (DecodeError, IndexError) as error:
            fetcher.failed(self.generation, PeerUnavailable(f"a malformed response: {error}"))
            raise
        except Exception as error:  # noqa: BLE001 (whatever it is, a log is in an unknown state)
            fetcher.give_up(error)

    def failed(self, error: PeerUnavailable) -> None:
        """The request gets no answer."""
        self._fetcher.forget(self)
        self._fetcher.failed(self.generation, error)
