"""Brings to the partitions that this broker follows what their leaders have.

For each source broker there is one fetch session with all partitions that follow it. A fetch waits
at the leader until there are records; what it brings is appended, and the next one, which says so,
goes out at once: that is what commits records. A partition that comes to follow a source while a
fetch waits there does not wait for its end: the next request overtakes it (see `Round.number`).
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.codec import encoder
from headrace_broker.protocol.errors import DecodeError, ErrorCode
from headrace_broker.protocol.messages import fetch
from headrace_broker.protocol.types import NodeId
from headrace_broker.replication.fetch_state import FIRST_EPOCH, Round
from headrace_broker.server.fast_fetch import (
    FAST_VERSION,
    Asked,
    Request,
    read_answer,
    write_request,
)
from headrace_broker.server.fetch_topics import Key, fetch_topics, forgotten_topics
from headrace_broker.server.fetched_partitions import FetchedPartitions, FetcherConfig
from headrace_broker.server.partition import Partition
from headrace_broker.server.peer_connection import PeerConnection, decode_answer
from headrace_broker.server.peers import Lane, PeerConnections, PeerUnavailable, common_version
from headrace_broker.server.replica_host import ReplicaHost

log = structlog.get_logger()

_ROUNDS_MAX = 2  # one that waits at the leader, and the one that overtakes it
_TAGS_AT = 4  # of an answer's header, behind the correlation id


class ReplicaFetcher:
    """One source broker and the partitions that follow it."""

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
        self._image: Any = None  # the metadata by which the connection was chosen
        self._timeout_ms = config.wait_max_ms + config.timeout_ms
        self._sent: dict[_Exchange, None] = {}
        self._watchdog: asyncio.TimerHandle | None = None
        self._rounds = 0
        self._generation = 0  # of the session: answers of a former one do not count
        self._retry: asyncio.TimerHandle | None = None
        self._heard_at = self._loop.time()
        self._is_scheduled = False
        self._is_closed = False

    def follow(self, key: Key, partition: Partition) -> None:
        """Fetch a partition from the source, from where it ends on."""
        if not len(self._state):
            self._heard_at = self._loop.time()  # nothing was asked since the last answer
        self.partitions.add(key, partition)

    @property
    def silent_seconds(self) -> float:
        """For how long the source has answered no fetch."""
        return self._loop.time() - self._heard_at

    async def close(self) -> None:
        """Fetch no more."""
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
        """Send soon: more partitions may come with the same change of metadata."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._send_if_due)

    def _send_if_due(self) -> None:
        self._is_scheduled = False
        if self._is_closed or self._retry is not None or not len(self._state):
            return
        state = self._state
        if self._rounds and not (
            state.has_news and state.session_id and self._rounds < _ROUNDS_MAX
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
        exchange = _Exchange(self, round_, self._generation, self._loop.time())
        try:
            connection.send(ApiKey.FETCH, self._version, self._body(round_), exchange)
        except PeerUnavailable as error:
            self.failed(self._generation, error)
            return
        self._sent[exchange] = None
        if self._watchdog is None:
            self._watchdog = self._loop.call_later(self._timeout_ms / 1000, self._watch)

    def _watch(self) -> None:
        """End a connection on which nothing is answered: one timer looks after every request."""
        self._watchdog = None
        if not self._sent or self._is_closed:
            return
        left = next(iter(self._sent)).sent_at + self._timeout_ms / 1000 - self._loop.time()
        if left > 0:
            self._watchdog = self._loop.call_later(left, self._watch)
        elif self._connection is not None:
            log.debug("fetch was not answered", source=self._source, within_ms=self._timeout_ms)
            self._connection.close()

    def _body(self, round_: Round) -> list[Any]:
        if self._version == FAST_VERSION and round_.news and not round_.forgotten:
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
                        for key, (offset, last_epoch, epoch, start) in round_.news
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
            topics=fetch_topics(round_.news, config.max_bytes),
            forgotten_topics_data=forgotten_topics(round_.forgotten),
        )

    def _start_over(self, *, at_once: bool = False) -> None:
        """Open a new session, after a pause that grows as long as that fails."""
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
        """A request got no answer."""
        if generation == self._generation:
            log.debug("fetch failed", source=self._source, cause=str(error))
            self._start_over()

    def forget(self, exchange: _Exchange) -> None:
        """Wait no longer for an answer."""
        self._sent.pop(exchange, None)

    def give_up(self, error: BaseException) -> None:
        """A log failed, or there is a bug."""
        self._host.on_failure(error)

    def answered(self, exchange: _Exchange, frame: memoryview, *, is_borrowed: bool) -> None:
        """Take over what an answer brings, and ask for more. Raises DecodeError or IndexError."""
        self._sent.pop(exchange, None)
        round_, generation = exchange.round, exchange.generation
        if generation != self._generation:
            return
        is_plain = self._version == FAST_VERSION and not frame[_TAGS_AT]
        usual = read_answer(frame, _TAGS_AT + 1) if is_plain else None
        to_sync: list[Partition] = []
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

    async def _go_on_when_durable(
        self, partitions: list[Partition], session_id: int, generation: int
    ) -> None:
        for partition in partitions:
            # The fsyncs of all of them run beside one another; the next fetch says what is on disk.
            if partition.flushing is not None:
                await partition.flushing.wait_durable()
        self._go_on(session_id, generation)

    def _go_on(self, session_id: int, generation: int) -> None:
        if generation != self._generation:
            return
        self._rounds -= 1
        if not session_id:
            self._start_over()  # a leader without slots answers at once: keep a distance
            return
        self.partitions.went_well()
        self._heard_at = self._loop.time()
        self._send_if_due()


class _Exchange:
    """One request of a fetcher on its way, and who receives its answer."""

    __slots__ = ("_fetcher", "generation", "round", "sent_at")

    def __init__(
        self, fetcher: ReplicaFetcher, round_: Round, generation: int, sent_at: float
    ) -> None:
        self._fetcher = fetcher
        self.round = round_
        self.generation = generation
        self.sent_at = sent_at

    def answered(self, frame: memoryview, *, is_borrowed: bool) -> None:
        """Take over what the answer brings."""
        fetcher = self._fetcher
        try:
            fetcher.answered(self, frame, is_borrowed=is_borrowed)
        except (DecodeError, IndexError) as error:
            fetcher.failed(self.generation, PeerUnavailable(f"a malformed response: {error}"))
            raise
        except Exception as error:  # noqa: BLE001 (whatever it is, a log is in an unknown state)
            fetcher.give_up(error)

    def failed(self, error: PeerUnavailable) -> None:
        """There will be no answer."""
        self._fetcher.forget(self)
        self._fetcher.failed(self.generation, error)
