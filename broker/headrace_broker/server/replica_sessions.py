"""The leader's side of a follower's fetch session: what each follower still has to be told.

A session keeps a set of the partitions that have news, fed by appends and by high watermarks that
move, so that a fetch costs what there is to say and not how many partitions are replicated. Records
answer a waiting fetch at once; a high watermark alone waits a little for records to travel with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from headrace_broker.protocol.types import BrokerEpoch, NodeId
from headrace_broker.server.fast_fetch import Asked, Found
from headrace_broker.server.fetch_sessions import FetchSession
from headrace_broker.server.replica_fetch import ReplicaFetch, partition_data
from headrace_broker.server.slots import OvertakenFuture
from headrace_broker.server.waiting import TIMER_SECONDS

if TYPE_CHECKING:
    from headrace_broker.server.replica_manager import ReplicaManager

HIGH_WATERMARK_DELAY_SECONDS = 0.05

News = list[tuple[ReplicaFetch, Found | PartitionData]]


class Parked(Protocol):
    """A fetch that waits for its answer."""

    def answer(self, session: ReplicaSession, error: ErrorCode) -> None:
        """Answer it with what the session has to tell."""


class ReplicaSession(FetchSession):
    """One follower's standing request."""

    __slots__ = (
        "_due",
        "_loop",
        "_max_bytes",
        "_replicas",
        "_timer",
        "_timer_at",
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
        self.fetches: dict[tuple[bytes, int], ReplicaFetch] = {}
        self.news: dict[ReplicaFetch, None] = {}
        self.parked: Parked | None = None
        self._replicas = replicas
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = self._due = 0.0
        self._max_bytes = 0

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
                gone = self.fetches.pop((topic.topic_id.bytes, index), None)
                if gone is not None:
                    gone.leave()
                    self.news.pop(gone, None)
        for topic in request.topics:
            topic_id = topic.topic_id
            for asked in topic.partitions:
                key = topic_id.bytes, asked.partition
                fetch = self.fetches.get(key)
                if fetch is None:
                    if len(self.fetches) >= partitions_max:
                        return ErrorCode.INVALID_REQUEST
                    fetch = ReplicaFetch(self, self._replicas, topic_id, asked.partition)
                    self.fetches[key] = fetch
                fetch.ask(
                    asked.fetch_offset,
                    asked.last_fetched_epoch,
                    asked.current_leader_epoch,
                    asked.partition_max_bytes,
                )
                self.news[fetch] = None
        self._max_bytes = max(0, request.max_bytes)
        return ErrorCode.NONE

    def proceed(
        self, asked: Iterable[tuple[ReplicaFetch, Asked]], broker_epoch: int, max_bytes: int
    ) -> None:
        """Do what `update` does, for a usual request that overtakes none."""
        self.broker_epoch = BrokerEpoch(broker_epoch)
        for fetch, (_, _, leader_epoch, fetch_offset, last_epoch, _, partition_bytes) in asked:
            fetch.ask(fetch_offset, last_epoch, leader_epoch, partition_bytes)
            self.news[fetch] = None
        self._max_bytes = max(0, max_bytes)

    def close(self) -> None:
        """The session ends: its partitions are free of it, and what waits is told."""
        for fetch in self.fetches.values():
            fetch.leave()
        self.fetches.clear()
        self.news.clear()
        self._release(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # what there is to tell

    def is_due(self) -> bool:
        """Whether an answer should go out now; what has nothing to tell is no news any more."""
        for fetch in list(self.news):
            if fetch.is_due:
                return True
            if not fetch.is_worth_telling and not fetch.is_behind:
                del self.news[fetch]
        return False

    def take(self) -> News:
        """Return the news, up to the bytes allowed; they count as told then."""
        left = self._max_bytes
        taken: News = []
        for fetch in list(self.news):
            if left <= 0:
                break
            data = fetch.take(left, at_least_one=left == self._max_bytes)
            if data is None:
                if not fetch.is_behind:
                    del self.news[fetch]
                continue
            taken.append((fetch, data))
            if data.records or type(data) is not Found or not fetch.is_behind:
                # Records and problems have the follower ask again from where it is then. Records
                # that did not fit stay news, whatever else was told.
                del self.news[fetch]
            left -= len(data.records or b"")
        return taken

    def response(self) -> FetchResponse:
        """Return the news as the general codec takes them."""
        return self.response_of(self.take())

    def response_of(self, news: News) -> FetchResponse:
        """Return what was taken as the general codec takes it."""
        topics: list[FetchableTopicResponse] = []
        for fetch, data in news:
            if not topics or topics[-1].topic_id != fetch.topic_id:
                topics.append(FetchableTopicResponse(topic_id=fetch.topic_id, partitions=[]))
            topics[-1].partitions.append(partition_data(data) if isinstance(data, Found) else data)
        return FetchResponse(session_id=self.identity, responses=topics)

    # waiting

    def park(self, parked: Parked, wait_seconds: float) -> None:
        """Keep a fetch until the next records, the next request, or its time is over."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        self.parked = parked
        # What is not urgent goes out with what comes, or soon.
        delay = HIGH_WATERMARK_DELAY_SECONDS if self.news else wait_seconds
        self._due = loop.time() + min(wait_seconds, delay)
        self._set_timer(loop)

    def wake(self) -> None:
        """Look again after the requests that are being handled now."""
        self._replicas.host.wakeups.add(self)

    def wake_later(self) -> None:
        """Answer soon: there may be records to travel with until then."""
        loop = self._loop
        if loop is not None:
            self._due = min(self._due, loop.time() + HIGH_WATERMARK_DELAY_SECONDS)
            self._set_timer(loop)

    def look_again(self) -> None:
        """Answer what waits, if there is something that should go out now."""
        if self.parked is not None and self.is_due():
            self._release(ErrorCode.NONE)

    def unpark(self, parked: Parked) -> None:
        """A fetch waits no more: its client is gone."""
        if self.parked is parked:
            self.parked = None

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have a timer that ends no later than what waits is due; it looks for itself then.

        A new one for each fetch, and its cancellation, would cost more than the fetch's records.
        """
        if self._timer is not None:
            if self._timer_at <= self._due + TIMER_SECONDS:
                return
            self._timer.cancel()
        self._timer_at = self._due
        self._timer = loop.call_at(self._due, self._expire)

    def _expire(self) -> None:
        self._timer = None
        loop = self._loop
        if self.parked is None or loop is None:
            return
        if loop.time() < self._due - TIMER_SECONDS:
            self._set_timer(loop)
        else:
            self._release(ErrorCode.NONE)

    def _release(self, error: ErrorCode) -> None:
        parked = self.parked
        if parked is not None:
            self.parked = None
            parked.answer(self, error)


class ParkedFuture(OvertakenFuture):
    """A parked fetch that the general path answers."""

    def answer(self, session: ReplicaSession, error: ErrorCode) -> None:
        """Answer it with what the session has to tell."""
        if not self.done():
            response = session.response()
            response.error_code = error
            self.set_result(response)
