"""Brings to the partitions that this broker follows what their leaders have.

For each source broker there is one fetch session with all partitions that follow it. A fetch waits
at the leader until there are records; what it brings is appended, and the next one, which says so,
goes out at once: that is what commits records. A partition that comes to follow a source while a
fetch waits there does not wait for its end: the next request overtakes it (see `Round.number`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import structlog

from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages import fetch
from headrace_broker.protocol.types import NodeId
from headrace_broker.replication.fetch_state import FIRST_EPOCH, FetchState, Position, Round
from headrace_broker.replication.follower import EpochEnd
from headrace_broker.server.fetch_topics import Key, fetch_topics, forgotten_topics
from headrace_broker.server.partition import Partition
from headrace_broker.server.peers import PeerConnections, PeerUnavailable
from headrace_broker.server.replica_host import ReplicaHost

log = structlog.get_logger()

_BACKOFF_SECONDS_MIN = 0.02
_ROUNDS_MAX = 2  # one that waits at the leader, and the one that overtakes it


@dataclass(frozen=True, kw_only=True, slots=True)
class FetcherConfig:
    """Kafka's replica.fetch settings."""

    wait_max_ms: int = 500
    max_bytes: int = 1024 * 1024
    response_max_bytes: int = 10 * 1024 * 1024
    backoff_ms: int = 200
    timeout_ms: int = 5000
    """How long beyond the wait an answer may take: a source that hangs is asked anew then."""


class ReplicaFetchers:
    """All sources of one broker."""

    def __init__(self, host: ReplicaHost, peers: PeerConnections, config: FetcherConfig) -> None:
        self._host = host
        self._peers = peers
        self._config = config
        self._fetchers: dict[NodeId, ReplicaFetcher] = {}
        self._sources: dict[Key, NodeId] = {}

    def follow(self, partition: Partition) -> None:
        """Fetch a partition from its leader, from where it ends on; anew after each change."""
        key = Key(partition.topic_id, partition.index)
        source = partition.leader
        former = self._sources.get(key)
        if former is not None and former != source:
            self._fetchers[former].remove(key)
        self._sources[key] = source
        fetcher = self._fetchers.get(source)
        if fetcher is None:
            fetcher = ReplicaFetcher(source, self._host, self._peers, self._config)
            self._fetchers[source] = fetcher
        fetcher.add(key, partition)

    def unfollow(self, partition: Partition) -> None:
        """Fetch a partition no more."""
        key = Key(partition.topic_id, partition.index)
        source = self._sources.pop(key, None)
        if source is not None:
            self._fetchers[source].remove(key)

    async def close(self) -> None:
        """Fetch no more."""
        for fetcher in self._fetchers.values():
            await fetcher.close()


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
        self._state: FetchState[Key] = FetchState()
        self._partitions: dict[Key, Partition] = {}
        self._delayed: set[Key] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._rounds = 0
        self._generation = 0  # of the session: answers of a former one do not count
        self._backoff = 0.0
        self._retry: asyncio.TimerHandle | None = None
        self._retry_delayed: asyncio.TimerHandle | None = None
        self._is_scheduled = False
        self._is_closed = False

    # which partitions

    def add(self, key: Key, partition: Partition) -> None:
        """Fetch a partition from where it ends on."""
        self._partitions[key] = partition
        flushing = partition.flushing
        if flushing is not None and partition.durable_end < partition.log.log_end_offset:
            # What is asked for says what this replica has, and that counts only once it is synced.
            self._spawn(self._add_when_durable(key, partition))
        else:
            self._ask(key, partition)

    async def _add_when_durable(self, key: Key, partition: Partition) -> None:
        if partition.flushing is not None:
            await partition.flushing.wait_durable()
        if self._partitions.get(key) is partition:
            self._ask(key, partition)

    def _ask(self, key: Key, partition: Partition) -> None:
        self._delayed.discard(key)
        self._state.set(key, partition.position())
        self._schedule()

    def remove(self, key: Key) -> None:
        """Fetch a partition no more."""
        self._partitions.pop(key, None)
        self._delayed.discard(key)
        self._state.remove(key)

    async def close(self) -> None:
        """Fetch no more."""
        self._is_closed = True
        for timer in (self._retry, self._retry_delayed):
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
        self._spawn(self._run(round_, self._generation))

    async def _run(self, round_: Round, generation: int) -> None:
        try:
            response = await self._peers.send(
                self._source,
                self._request(round_),
                timeout_ms=self._config.wait_max_ms + self._config.timeout_ms,
            )
        except PeerUnavailable as error:
            if generation == self._generation:
                log.debug("fetch failed", source=self._source, cause=str(error))
                self._start_over()
            return
        if generation != self._generation:
            return
        if response.error_code != ErrorCode.NONE:
            is_lost = response.error_code in (
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
            )
            log.debug("fetch refused", source=self._source, code=response.error_code)
            self._start_over(at_once=is_lost and round_.epoch != FIRST_EPOCH)
            return
        if round_.epoch == FIRST_EPOCH:
            self._state.session_id = response.session_id
        await self._take_all(round_.number, response.responses)
        if generation != self._generation:
            return
        self._rounds -= 1
        if not response.session_id:
            self._start_over()  # a leader without slots answers at once: keep a distance
            return
        self._backoff = 0.0
        self._send_if_due()

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
        self._backoff = min(
            max(self._backoff * 2, _BACKOFF_SECONDS_MIN), self._config.backoff_ms / 1000
        )
        if self._retry is None:
            self._retry = self._loop.call_later(self._backoff, self._retry_now)

    def _retry_now(self) -> None:
        self._retry = None
        self._send_if_due()

    # answers

    async def _take_all(self, number: int, topics: Iterable[fetch.FetchableTopicResponse]) -> None:
        to_sync: list[Partition] = []
        for topic in topics:
            for data in topic.partitions:
                key = Key(topic.topic_id, data.partition_index)
                position = self._state.answered(key, number)
                partition = self._partitions.get(key)
                if position is None or partition is None:
                    continue
                if partition.leading is not None or partition.leader_epoch != position.leader_epoch:
                    continue  # the metadata moved on; `follow` has been or will be called
                try:
                    self._take(key, partition, position, data)
                except LogDirectoryFailure:
                    raise
                except ApiError as error:
                    self._warn(partition, error)
                    self._delay(key)
                if partition.flushing is not None:
                    to_sync.append(partition)
        for partition in to_sync:
            # The fsyncs of all of them run beside one another; the next fetch says what is on disk.
            if partition.flushing is not None:
                await partition.flushing.wait_durable()

    def _take(
        self, key: Key, partition: Partition, position: Position, data: fetch.PartitionData
    ) -> None:
        if data.error_code != ErrorCode.NONE:
            self._refused(key, partition, data)
            return
        diverging = data.diverging_epoch
        if diverging.epoch >= 0:
            self._truncate(key, partition, EpochEnd(diverging.epoch, diverging.end_offset))
            return
        if data.records:
            if partition.log.log_end_offset != position.fetch_offset:
                self._state.set(key, partition.position())
                return
            partition.append_as_follower(data.records)
            if partition.is_follower_throttled:
                self._host.follower_throttle.record(len(data.records))
            if self._is_over_quota(partition):
                self._delay(key)
            else:
                self._state.set(key, partition.position())
        partition.follow_high_watermark(data.high_watermark, data.log_start_offset)

    def _truncate(self, key: Key, partition: Partition, diverging: EpochEnd) -> None:
        before, high_watermark = partition.position(), partition.high_watermark
        end = partition.truncate(diverging)
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
            self._delay(key)  # it would be told the same again
        else:
            self._state.set(key, partition.position())

    def _refused(self, key: Key, partition: Partition, data: fetch.PartitionData) -> None:
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            start, own = data.log_start_offset, partition.log
            if start > own.log_end_offset or (start >= 0 and own.leader_epochs.latest < 0):
                log.info(
                    "log begins anew at the leader's start",
                    topic=partition.topic,
                    partition=partition.index,
                    leader=self._source,
                    log_end_before=own.log_end_offset,
                    leader_log_start=start,
                )
                partition.restart_at(start)
                self._state.remove(key)
                self._ask(key, partition)
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
        self._state.remove(key)
        self._delayed.add(key)
        if self._retry_delayed is None:
            pause = min(
                max(self._backoff * 2, _BACKOFF_SECONDS_MIN), self._config.backoff_ms / 1000
            )
            self._backoff = pause
            self._retry_delayed = self._loop.call_later(pause, self._ask_delayed)

    def _ask_delayed(self) -> None:
        self._retry_delayed = None
        for key in list(self._delayed):
            if self._is_over_quota(self._partitions[key]):
                self._delay(key)
            else:
                self.add(key, self._partitions[key])

    def _is_over_quota(self, partition: Partition) -> bool:
        """Whether a replica that is not in sync has to wait (KIP-73)."""
        return (
            partition.is_follower_throttled
            and self._host.node_id not in partition.in_sync_replicas
            and self._host.follower_throttle.is_exceeded(self._host.now_ms())
        )
