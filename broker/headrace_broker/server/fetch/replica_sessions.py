"""The leader's side of followers' fetch sessions: what each follower still has to be sent.

A session keeps the set of its dirty partitions, those with something to send. Appends and moving
high watermarks add to it, so the cost of a fetch depends on what there is to send and not on the
number of partitions. Records answer a waiting fetch at once; a high watermark alone waits a little,
to be sent along with records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.fast_fetch import Asked, Found
from headrace_broker.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from headrace_broker.protocol.types import BrokerEpoch, NodeId, Offset
from headrace_broker.replication.follower import EpochEnd, diverging_epoch
from headrace_broker.server.fetch.fetch_sessions import FetchSession
from headrace_broker.server.network.delayed import TIMER_SECONDS, DelayedOperation

if TYPE_CHECKING:
    from headrace_broker.server.partitions.partition import Partition
    from headrace_broker.server.partitions.replica_host import ReplicaHost
    from headrace_broker.server.partitions.replica_manager import ReplicaManager

HIGH_WATERMARK_DELAY_SECONDS = 0.05
_NOTHING = (-1, -1)


class ReplicaFetch:
    """What a follower fetches from one partition. Implements the partition's `FollowerFetch`."""

    __slots__ = (
        "_last_sent",
        "_problem",
        "_replicas",
        "_sent_with_records",
        "_session",
        "fetch_offset",
        "index",
        "last_fetched_epoch",
        "leader_epoch",
        "max_bytes",
        "partition",
        "topic_bytes",
        "topic_id",
    )

    def __init__(
        self, session: ReplicaSession, replicas: ReplicaManager, topic_id: UUID, index: int
    ) -> None:
        self._session = session
        self._replicas = replicas
        self.topic_id = topic_id
        self.topic_bytes = topic_id.bytes
        self.index = index
        self.partition: Partition | None = None
        self.fetch_offset = -1
        self._last_sent = self._sent_with_records = _NOTHING
        """The high watermark and log start sent last, and with the first records since `ask`."""
        self._problem: ApiError | EpochEnd | None = None

    # implements Partition's FollowerFetch

    @property
    def place(self) -> tuple[int, int]:
        """The session id and the session epoch, which counts the follower's requests."""
        return self._session.identity, self._session.epoch

    def appended(self) -> None:
        """Records were appended, or this broker became leader."""
        session = self._session
        session.dirty[self] = None
        if session.delayed is not None:
            session.wake()

    def changed(self) -> None:
        """The high watermark or the log start offset moved."""
        session = self._session
        session.dirty[self] = None
        if session.delayed is not None:
            session.wake_later()

    # for the session

    def ask(self, asked: Asked) -> None:
        """Apply the follower's request; its offsets say what the follower has."""
        _, _, leader_epoch, fetch_offset, last_fetched_epoch, log_start_offset, max_bytes = asked
        # The follower ignores answers that this request has overtaken. It is further now only if it
        # has taken records, and what came with them.
        is_further = fetch_offset > self.fetch_offset
        self._last_sent = self._sent_with_records if is_further else _NOTHING
        self._sent_with_records = _NOTHING
        self.fetch_offset = fetch_offset
        self.last_fetched_epoch = last_fetched_epoch
        self.leader_epoch = leader_epoch
        self.max_bytes = max_bytes
        self._problem = None
        try:
            self._admit(log_start_offset)
        except ApiError as error:
            self._problem = error

    def _admit(self, log_start_offset: int) -> None:
        node_id = self._session.node_id
        partition = self.partition
        if partition is None or partition.leading is None:
            # A partition that was removed does not lead.
            found = self._replicas.partition_by_id(self.topic_id, self.index)
            if found is not partition:
                self.leave()
                self.partition = partition = found
        partition.follower_fetches[node_id] = self
        partition.check_leader(self.leader_epoch)
        log = partition.log
        # A diverging log must not count as progress, however long it is.
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
            leading = partition.leading
            if leading is not None and leading.note_log_start(node_id, Offset(log_start_offset)):
                partition.host.check_deletions()

    def leave(self) -> None:
        """Leave the partition: it has nothing more to send in this session."""
        partition = self.partition
        if partition is not None:
            node_id = self._session.node_id
            if partition.follower_fetches.get(node_id) is self:
                del partition.follower_fetches[node_id]
            self.partition = None

    @property
    def is_due(self) -> bool:
        """Whether something should be sent at once: records, or an error."""
        partition = self.partition
        if (
            partition is None
            or self._problem is not None
            or partition.leading is None
            or self.leader_epoch != partition.leader_epoch
        ):
            return True
        return self.fetch_offset < partition.log.log_end_offset and not (
            partition.is_leader_throttled and self._is_over_quota(partition)
        )

    @property
    def has_changed(self) -> bool:
        """Whether the high watermark or the log start moved since they were sent."""
        partition = self.partition
        return partition is None or self._last_sent != (
            partition.high_watermark,
            partition.log.log_start_offset,
        )

    @property
    def is_behind(self) -> bool:
        """Whether there are records that did not fit into the last answer."""
        partition = self.partition
        return (
            partition is not None
            and self._problem is None
            and self.fetch_offset < partition.log.log_end_offset
        )

    def take(self, limit: int, *, at_least_one: bool) -> Found | PartitionData | None:
        """Return what there is to send, if anything; it then counts as sent."""
        partition = self.partition
        problem = self._problem
        if isinstance(problem, ApiError):
            return self._failed(problem)
        if partition is None:
            return self._failed(ApiError(ErrorCode.UNKNOWN_TOPIC_ID))
        try:
            records = self._read(partition, limit, at_least_one=at_least_one)
        except ApiError as error:
            return self._failed(error)
        if partition.is_leader_throttled:
            partition.host.leader_throttle.record(len(records))
        ends = (int(partition.high_watermark), int(partition.log.log_start_offset))
        if not records and problem is None and ends == self._last_sent:
            return None
        self._last_sent = ends
        if records and self._sent_with_records == _NOTHING:
            self._sent_with_records = ends
        found = Found(self.topic_bytes, self.index, *ends, records)
        if problem is None:
            return found
        data = partition_data(found)
        data.diverging_epoch = EpochEndOffset(epoch=problem.epoch, end_offset=problem.end_offset)
        return data

    def _read(self, partition: Partition, limit: int, *, at_least_one: bool) -> bytes | memoryview:
        partition.check_leader(self.leader_epoch)
        log = partition.log
        if (
            self._problem is not None
            or self.fetch_offset >= log.log_end_offset
            or (partition.is_leader_throttled and self._is_over_quota(partition))
        ):
            return b""
        try:
            return log.read(
                Offset(self.fetch_offset),
                min(limit, self.max_bytes),
                upper_bound=log.log_end_offset,
                at_least_one=at_least_one,
            )
        except LogDirectoryFailure as failure:
            raise partition.directory_failed(failure) from failure

    def _is_over_quota(self, partition: Partition) -> bool:
        """Whether an out-of-sync replica has to wait because of the throttle (KIP-73)."""
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


Taken = list[tuple[ReplicaFetch, Found | PartitionData]]


def is_believed(host: ReplicaHost, node_id: int, broker_epoch: int) -> bool:
    """Whether a fetch comes from the registered process of another broker (KIP-903).

    Otherwise a client that poses as a broker could move the high watermark (CVE-2018-1288).
    """
    registered = host.image.brokers.get(node_id)  # type: ignore[call-overload]  # a NodeId is an int
    return registered is not None and broker_epoch >= registered.epoch and node_id != host.node_id


class ReplicaSession(FetchSession):
    """The fetch session of one follower."""

    __slots__ = (
        "_due",
        "_loop",
        "_max_bytes",
        "_replicas",
        "_timer",
        "_timer_at",
        "broker_epoch",
        "delayed",
        "dirty",
        "fetches",
        "node_id",
    )

    is_privileged = True

    def __init__(
        self, identity: int, replicas: ReplicaManager, node_id: NodeId, broker_epoch: BrokerEpoch
    ) -> None:
        super().__init__(identity)
        self.node_id = node_id
        self.broker_epoch = broker_epoch
        self.fetches: dict[tuple[bytes, int], ReplicaFetch] = {}
        self.dirty: dict[ReplicaFetch, None] = {}
        self.delayed: DelayedFollowerFetch | None = None
        self._replicas = replicas
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = self._due = 0.0
        self._max_bytes = 0

    @property
    def size(self) -> int:
        """How many partitions the follower asks for."""
        return len(self.fetches)

    def update(self, request: Any, partitions_max: int) -> ErrorCode:
        """Answer the waiting request, apply the changes of the new one, and count its progress."""
        self._release(ErrorCode.NONE)
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                gone = self.fetches.pop((topic.topic_id.bytes, index), None)
                if gone is not None:
                    gone.leave()
                    self.dirty.pop(gone, None)
        changed: list[tuple[ReplicaFetch, Asked]] = []
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
                one = Asked(
                    *key,
                    asked.current_leader_epoch,
                    asked.fetch_offset,
                    asked.last_fetched_epoch,
                    asked.log_start_offset,
                    asked.partition_max_bytes,
                )
                changed.append((fetch, one))
        self.proceed(changed, request.replica_state.replica_epoch, request.max_bytes)
        return ErrorCode.NONE

    def proceed(
        self, asked: Iterable[tuple[ReplicaFetch, Asked]], broker_epoch: int, max_bytes: int
    ) -> None:
        """Apply a request's positions; they say what the follower has."""
        self.broker_epoch = BrokerEpoch(broker_epoch)
        for fetch, position in asked:
            fetch.ask(position)
            self.dirty[fetch] = None
        self._max_bytes = max(0, max_bytes)

    def close(self) -> None:
        """Close the session: detach it from its partitions, and answer a delayed fetch."""
        for fetch in self.fetches.values():
            fetch.leave()
        self.fetches.clear()
        self.dirty.clear()
        self._release(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # what there is to send

    def is_due(self) -> bool:
        """Whether an answer should go out now; partitions with nothing to send become clean."""
        for fetch in list(self.dirty):
            if fetch.is_due:
                return True
            if not fetch.has_changed and not fetch.is_behind:
                del self.dirty[fetch]
        return False

    def take(self) -> Taken:
        """Return what there is to send, up to the byte limits; it then counts as sent."""
        left = self._max_bytes
        taken: Taken = []
        for fetch in list(self.dirty):
            if left <= 0:
                break
            data = fetch.take(left, at_least_one=left == self._max_bytes)
            if data is None:
                if not fetch.is_behind:
                    del self.dirty[fetch]
                continue
            taken.append((fetch, data))
            if data.records or type(data) is not Found or not fetch.is_behind:
                # After records and errors, the follower asks again from its new position. Records
                # that did not fit stay dirty, whatever else was sent.
                del self.dirty[fetch]
            left -= len(data.records or b"")
        return taken

    def response(self) -> FetchResponse:
        """Return what there is to send, as a message for the general codec."""
        return self.response_of(self.take())

    def response_of(self, taken: Taken) -> FetchResponse:
        """Return what `take` returned, as a message for the general codec."""
        topics: list[FetchableTopicResponse] = []
        for fetch, data in taken:
            if not topics or topics[-1].topic_id != fetch.topic_id:
                topics.append(FetchableTopicResponse(topic_id=fetch.topic_id, partitions=[]))
            topics[-1].partitions.append(partition_data(data) if isinstance(data, Found) else data)
        return FetchResponse(session_id=self.identity, responses=topics)

    # waiting

    def must_wait(self, max_wait_ms: int) -> bool:
        """Whether the request that was just applied has to wait for something to send."""
        return max_wait_ms > 0 and not self.is_due()

    def delay(self, delayed: DelayedFollowerFetch, wait_seconds: float) -> None:
        """Hold a fetch until there are records, the next request arrives, or its time is over."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        self.delayed = delayed
        # What is not urgent goes out with the next records, or after a short delay.
        delay = HIGH_WATERMARK_DELAY_SECONDS if self.dirty else wait_seconds
        self._due = loop.time() + min(wait_seconds, delay)
        self._set_timer(loop)

    def wake(self) -> None:
        """Check this session again after the requests that are being handled now."""
        self._replicas.host.wakeups.add(self)

    def wake_later(self) -> None:
        """Answer soon: until then records may be appended that can go along."""
        loop = self._loop
        if loop is not None:
            self._due = min(self._due, loop.time() + HIGH_WATERMARK_DELAY_SECONDS)
            self._set_timer(loop)

    def look_again(self) -> None:
        """Answer the delayed fetch, if there is something to send now."""
        if self.delayed is not None and self.is_due():
            self._release(ErrorCode.NONE)

    def give_up(self, delayed: DelayedFollowerFetch) -> None:
        """Drop a delayed fetch: its client is gone."""
        if self.delayed is delayed:
            self.delayed = None

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make sure that a timer fires no later than the delayed fetch is due; it checks by itself.

        Creating and cancelling a timer for each fetch would cost more than the fetch's records.
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
        if self.delayed is None or loop is None:
            return
        if loop.time() < self._due - TIMER_SECONDS:
            self._set_timer(loop)
        else:
            self._release(ErrorCode.NONE)

    def _release(self, error: ErrorCode) -> None:
        delayed = self.delayed
        if delayed is not None:
            self.delayed = None
            delayed.answer(error)


class DelayedFollowerFetch(DelayedOperation):
    """A follower's fetch that waits in its session for something to send, or for its timeout.

    This class uses the general codec; the one in `fast_follower` uses the fast one.
    """

    __slots__ = ("_session",)

    def __init__(self, session: ReplicaSession, version: int, correlation_id: int) -> None:
        super().__init__(version, correlation_id)
        self._session = session

    def answer(self, error: ErrorCode) -> None:
        """Answer with what the session has to send."""
        response = self._session.response()
        response.error_code = error
        self.send(response)

    def abandon(self) -> None:
        """Drop the fetch: the follower is gone."""
        super().abandon()
        self._session.give_up(self)


def partition_data(found: Found) -> PartitionData:
    """Return what was found, as a message for the general codec."""
    return PartitionData(
        partition_index=found.partition,
        high_watermark=found.high_watermark,
        last_stable_offset=-1,
        log_start_offset=found.log_start_offset,
        aborted_transactions=None,
        records=found.records,
    )
