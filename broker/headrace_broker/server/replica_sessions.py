"""The leader's side of a follower's fetch session: what each follower still has to be told.

A session keeps a set of the partitions that have news, fed by appends and by high watermarks that
move, so that a fetch costs what there is to say and not how many partitions are replicated. Records
answer a waiting fetch at once; a high watermark alone waits a little for records to travel with.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from headrace_broker.protocol.types import BrokerEpoch, NodeId, Offset
from headrace_broker.replication.follower import EpochEnd, diverging_epoch
from headrace_broker.server.fetch_sessions import FetchSession
from headrace_broker.server.slots import OvertakenFuture

if TYPE_CHECKING:
    from headrace_broker.server.partition import Partition
    from headrace_broker.server.replica_manager import ReplicaManager

HIGH_WATERMARK_DELAY_SECONDS = 0.05


class ReplicaFetch:
    """One partition in a follower's session: what it asked for, and what it was told last."""

    __slots__ = (
        "_problem",
        "_replicas",
        "_session",
        "_told",
        "fetch_offset",
        "index",
        "last_fetched_epoch",
        "leader_epoch",
        "max_bytes",
        "partition",
        "topic_id",
    )

    def __init__(
        self, session: ReplicaSession, replicas: ReplicaManager, topic_id: UUID, index: int
    ) -> None:
        self._session = session
        self._replicas = replicas
        self.topic_id = topic_id
        self.index = index
        self.partition: Partition | None = None
        self._told = (-1, -1)
        self._problem: ApiError | EpochEnd | None = None

    # Partition's FollowerFetch

    def appended(self) -> None:
        """Records came, or the leader did."""
        session = self._session
        session.news[self] = None
        if session.parked is not None:
            session.wake()

    def changed(self) -> None:
        """The high watermark or the log's start moved."""
        session = self._session
        session.news[self] = None
        if session.parked is not None:
            session.wake_later()

    # the session's

    def ask(self, asked: Any) -> None:
        """Take over what the follower asks for; that it asks says what it has."""
        self.fetch_offset: int = asked.fetch_offset
        self.last_fetched_epoch: int = asked.last_fetched_epoch
        self.leader_epoch: int = asked.current_leader_epoch
        self.max_bytes: int = asked.partition_max_bytes
        self._problem = None
        try:
            self._admit()
        except ApiError as error:
            self._problem = error

    def _admit(self) -> None:
        node_id = self._session.node_id
        partition = self._replicas.partition_by_id(self.topic_id, self.index)
        if partition is not self.partition:
            self.leave()
            self.partition = partition
        partition.follower_fetches[node_id] = self
        partition.check_leader(self.leader_epoch)
        log = partition.log
        # A log that parts from ours must not count as progress, whatever its length.
        self._problem = diverging_epoch(
            log.leader_epochs, self.last_fetched_epoch, self.fetch_offset
        )
        if self._problem is None:
            if not log.log_start_offset <= self.fetch_offset <= log.log_end_offset:
                raise ApiError(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"offset {self.fetch_offset} is outside {log.log_start_offset} to "
                    f"{log.log_end_offset}",
                )
            partition.record_fetch(node_id, self._session.broker_epoch, self.fetch_offset)

    def leave(self) -> None:
        """Be told no more."""
        partition = self.partition
        if partition is not None:
            node_id = self._session.node_id
            if partition.follower_fetches.get(node_id) is self:
                del partition.follower_fetches[node_id]
            self.partition = None

    def read(self, limit: int, *, at_least_one: bool) -> tuple[PartitionData | None, bool]:
        """Return the news, if any, and whether it should go out now."""
        partition = self.partition
        problem = self._problem
        if isinstance(problem, ApiError):
            return self._failed(problem), True
        if partition is None:
            return self._failed(ApiError(ErrorCode.UNKNOWN_TOPIC_ID)), True
        try:
            partition.check_leader(self.leader_epoch)
            log = partition.log
            records: bytes | memoryview = b""
            if (
                problem is None
                and self.fetch_offset < log.log_end_offset
                and not (partition.is_leader_throttled and self._is_over_quota(partition))
            ):
                records = log.read(
                    Offset(self.fetch_offset),
                    min(limit, self.max_bytes),
                    upper_bound=log.log_end_offset,
                    at_least_one=at_least_one,
                )
        except ApiError as error:
            return self._failed(error), True
        if partition.is_leader_throttled:
            partition.host.leader_throttle.record(len(records))
        told = (int(partition.high_watermark), int(log.log_start_offset))
        if not records and problem is None and told == self._told:
            return None, False
        self._told = told
        data = PartitionData(
            partition_index=self.index,
            high_watermark=told[0],
            last_stable_offset=-1,
            log_start_offset=told[1],
            aborted_transactions=None,
            records=records,
        )
        if problem is not None:
            data.diverging_epoch = EpochEndOffset(
                epoch=problem.epoch, end_offset=problem.end_offset
            )
        return data, bool(records) or problem is not None

    def _is_over_quota(self, partition: Partition) -> bool:
        """Whether a replica that is not in sync has to wait (KIP-73)."""
        host = partition.host
        return self._session.node_id not in partition.in_sync_replicas and (
            host.leader_throttle.is_exceeded(host.now_ms())
        )

    def _failed(self, error: ApiError) -> PartitionData:
        data = PartitionData(
            partition_index=self.index,
            error_code=error.code,
            high_watermark=-1,
            aborted_transactions=None,
            records=b"",
        )
        partition = self.partition
        if partition is not None:
            data.log_start_offset = partition.log.log_start_offset
            data.current_leader = LeaderIdAndEpoch(
                leader_id=partition.leader, leader_epoch=partition.leader_epoch
            )
        return data

    @property
    def is_behind(self) -> bool:
        """Whether there are records that it was not sent for want of room."""
        partition = self.partition
        return (
            partition is not None
            and self._problem is None
            and self.fetch_offset < partition.log.log_end_offset
        )


class ReplicaSession(FetchSession):
    """One follower's standing request."""

    __slots__ = (
        "_max_bytes",
        "_ready",
        "_replicas",
        "_scheduled",
        "_timer",
        "broker_epoch",
        "fetches",
        "news",
        "node_id",
        "parked",
    )

    def __init__(
        self, identity: int, replicas: ReplicaManager, node_id: NodeId, broker_epoch: BrokerEpoch
    ) -> None:
        super().__init__(identity)
        self.node_id = node_id
        self.broker_epoch = broker_epoch
        self.fetches: dict[tuple[UUID, int], ReplicaFetch] = {}
        self.news: dict[ReplicaFetch, None] = {}
        self.parked: OvertakenFuture | None = None
        self._replicas = replicas
        self._timer: asyncio.TimerHandle | None = None
        self._scheduled = False
        self._max_bytes = 0
        self._ready: list[tuple[ReplicaFetch, PartitionData]] = []

    @property
    def is_empty(self) -> bool:
        """Whether it asks for nothing."""
        return not self.fetches

    def update(self, request: Any, partitions_max: int) -> ErrorCode:
        """Answer what still waits, take over what changed, and count it as progress."""
        self._release(ErrorCode.NONE)
        self.broker_epoch = BrokerEpoch(request.replica_state.replica_epoch)
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                gone = self.fetches.pop((topic.topic_id, index), None)
                if gone is not None:
                    gone.leave()
                    self.news.pop(gone, None)
        for topic in request.topics:
            topic_id = topic.topic_id
            for asked in topic.partitions:
                key = topic_id, asked.partition
                fetch = self.fetches.get(key)
                if fetch is None:
                    if len(self.fetches) >= partitions_max:
                        return ErrorCode.INVALID_REQUEST
                    fetch = ReplicaFetch(self, self._replicas, topic_id, asked.partition)
                    self.fetches[key] = fetch
                fetch.ask(asked)
                self.news[fetch] = None
        self._max_bytes = max(0, request.max_bytes)
        return ErrorCode.NONE

    def close(self) -> None:
        """The session ends: its partitions are free of it, and what waits is told."""
        for fetch in self.fetches.values():
            fetch.leave()
        self.fetches.clear()
        self.news.clear()
        self._release(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

    def read(self) -> bool:
        """Look at what has news, up to the bytes allowed; True where it should go out now."""
        left = self._max_bytes
        is_due = False
        for fetch in list(self.news):
            if left <= 0:
                break
            data, is_urgent = fetch.read(left, at_least_one=left == self._max_bytes)
            if data is None:
                if not fetch.is_behind:
                    del self.news[fetch]
                continue
            self._ready.append((fetch, data))
            is_due = is_due or is_urgent
            if is_urgent or not fetch.is_behind:
                # Whatever goes out is asked for again from where the follower is then.
                del self.news[fetch]
            left -= len(data.records or b"")
        return is_due

    def response(self) -> FetchResponse:
        """Build the answer from what was read."""
        topics: list[FetchableTopicResponse] = []
        for fetch, data in self._ready:
            if not topics or topics[-1].topic_id != fetch.topic_id:
                topics.append(FetchableTopicResponse(topic_id=fetch.topic_id, partitions=[]))
            topics[-1].partitions.append(data)
        self._ready = []
        return FetchResponse(session_id=self.identity, responses=topics)

    # waiting

    def park(self, wait_seconds: float) -> OvertakenFuture:
        """Return a future of the answer: at the next records, the next request, or in time."""
        loop = asyncio.get_running_loop()
        parked = self.parked = OvertakenFuture(loop=loop)
        parked.add_done_callback(self._left)
        # What was read and is not urgent goes out with what comes, or soon.
        delay = HIGH_WATERMARK_DELAY_SECONDS if self._ready else wait_seconds
        self._timer = loop.call_later(min(wait_seconds, delay), self._expire)
        return parked

    def wake(self) -> None:
        """Read again after the requests that are being handled now."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._retry)

    def wake_later(self) -> None:
        """Answer soon: there may be records to travel with until then."""
        timer = self._timer
        if timer is None:
            return
        loop = asyncio.get_running_loop()
        if timer.when() > loop.time() + HIGH_WATERMARK_DELAY_SECONDS:
            timer.cancel()
            self._timer = loop.call_later(HIGH_WATERMARK_DELAY_SECONDS, self._expire)

    def _retry(self) -> None:
        self._scheduled = False
        if self.parked is not None and self.read():
            self._release(ErrorCode.NONE)

    def _expire(self) -> None:
        if self.parked is not None:
            self.read()
            self._release(ErrorCode.NONE)

    def _release(self, error: ErrorCode) -> None:
        parked = self.parked
        if parked is None:
            return
        self.parked = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not parked.done():
            response = self.response()
            response.error_code = error
            parked.set_result(response)

    def _left(self, parked: asyncio.Future[Any]) -> None:
        if self.parked is parked:
            self.parked = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
