"""Fetch: whole batches of many partitions, with long polling.

Versions: 4 isolation level · 5 log start offset · 6 as 5 · 7 sessions (KIP-227) · 8 as 7 · 9 leader
epoch (KIP-320) · 10 zstd · 11 rack (KIP-392) · 12 flexible, diverging epochs (KIP-595) · 13 topic
ids (KIP-516) · 14 as 13 · 15 replica state (KIP-903) · 16 node endpoints (KIP-951) · 17 directory
ids (KIP-853) · 18 high watermark of the fetcher (KIP-1166).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from headrace_broker.log.batches import iterate_headers
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from headrace_broker.server.api.services import (
    WithBudget,
    WithConfig,
    WithFetchSessions,
    WithReplicas,
)
from headrace_broker.server.fetch.fetch_sessions import FetchPartition, FetchSession, partitions_of
from headrace_broker.server.fetch.follower_fetch import handle_follower
from headrace_broker.server.membership.leader_hints import HINTED, LeaderHints
from headrace_broker.server.network.delayed import DelayedOperation
from headrace_broker.server.network.slots import LastAnswer
from headrace_broker.server.partitions.partition import (
    ISOLATION_READ_COMMITTED,
    CutOffError,
    not_leader,
)

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext
    from headrace_broker.server.partitions.partition import Partition

API_KEY = ApiKey.FETCH

TOPIC_IDS_FROM = 13
FROM_FOLLOWERS_FROM = 11
LEADER_HINTS_FROM = 16


class Node(WithBudget, WithConfig, WithFetchSessions, WithReplicas, Protocol):
    """What this handler needs from the node."""


def handle(
    broker: Node, context: RequestContext, request: FetchRequest
) -> FetchResponse | LastAnswer | DelayedOperation:
    """Answer at once with enough data or an error; else wait for appends or max_wait_ms."""
    if max(request.replica_id, request.replica_state.replica_id) >= 0:
        return handle_follower(broker, context, request)
    session, error = broker.fetch_sessions.open(request)
    if error is not ErrorCode.NONE:
        return FetchResponse(error_code=error)
    fetch = _Fetch(broker, context, request, session)
    if fetch.read() or request.max_wait_ms <= 0:
        return LastAnswer(fetch.response()) if fetch.is_cut_off else fetch.response()
    delayed = _DelayedFetch(fetch, context)
    wait_ms = min(request.max_wait_ms, broker.config.values["headrace.fetch.max.wait.ms"])
    delayed.delay(broker.replicas.host.purgatory, wait_ms)
    return delayed


class _Fetch:
    """One request: its partitions, and what the last read found."""

    def __init__(
        self,
        broker: Node,
        context: RequestContext,
        request: FetchRequest,
        session: FetchSession | None,
    ) -> None:
        self.request = request
        self.session = session
        self.found: list[tuple[FetchPartition, PartitionData]] = []
        self.bytes_found = 0
        self.is_cut_off = False
        """Whether a cut-off leader has nothing more to read."""
        self._limit: int = max(0, min(request.max_bytes, broker.config.values["fetch.max.bytes"]))
        self.min_bytes: int = min(request.min_bytes, self._limit)
        self._room = 0
        """What the last read could return at most."""
        self._budget = broker.budget
        self._by_id = context.api_version >= TOPIC_IDS_FROM
        self._replicas = broker.replicas
        # A follower serves a consumer only where its leader may redirect consumers (KIP-392).
        self._from_followers = (
            context.api_version >= FROM_FOLLOWERS_FROM and broker.replicas.selects_by_rack
        )
        self._hints = (
            LeaderHints(broker.replicas.host.image, context.listener, broker.replicas.host.node_id)
            if context.api_version >= LEADER_HINTS_FROM
            else None
        )
        self._full = session is None or session.epoch == 1
        self._wanted: Sequence[FetchPartition] = (
            list(partitions_of(request)) if session is None else list(session.partitions.values())
        )

    def partitions(self) -> list[Partition]:
        """This broker's partitions that the request waits for."""
        found = []
        for wanted in self._wanted:
            try:
                found.append(self._partition(wanted))
            except ApiError:
                continue
        return found

    def _partition(self, wanted: FetchPartition) -> Partition:
        if self._by_id:
            return self._replicas.partition_by_id(wanted.topic_id, wanted.index)
        return self._replicas.partition(wanted.topic, wanted.index)

    def read(self) -> bool:
        """Read every partition; return True if the answer should go out now."""
        self.found.clear()
        self.bytes_found = 0
        self.is_cut_off = False
        now = not self._wanted
        isolation = self.request.isolation_level
        remaining = self._room = min(self._limit, self._budget.left)
        for wanted in self._wanted:
            data = PartitionData(partition_index=wanted.index)
            try:
                partition = self._partition(wanted)
                if not self._from_followers:
                    partition.check_leader(wanted.current_leader_epoch)
                if self._from_followers and self._redirect(partition, wanted, data):
                    records: bytes | memoryview = b""
                    now = True
                else:
                    records = partition.read(
                        wanted.fetch_offset,
                        max(0, min(remaining, wanted.partition_max_bytes)),
                        isolation=isolation,
                        # Whatever memory is left: a consumer must get on (KIP-74).
                        at_least_one=not self.bytes_found,
                    )
                    if partition.is_cut_off:
                        _check_may_wait(partition, wanted.fetch_offset, isolation)
            except ApiError as error:
                self.is_cut_off |= isinstance(error, CutOffError)
                self._fail(wanted, data, error.code)
                now = True
            else:
                log = partition.log
                data.high_watermark = partition.high_watermark
                data.last_stable_offset = min(partition.high_watermark, log.last_stable_offset)
                data.log_start_offset = log.log_start_offset
                data.records = records
                size = len(records)
                self.bytes_found += size
                remaining -= size
                if isolation == ISOLATION_READ_COMMITTED:
                    data.aborted_transactions = [
                        AbortedTransaction(producer_id=found[0], first_offset=found[1])
                        for found in log.aborted_within(wanted.fetch_offset, records)
                    ]
                else:
                    data.aborted_transactions = None
            self.found.append((wanted, data))
        is_enough = self.bytes_found >= self.min_bytes
        return now or is_enough or (self.bytes_found > 0 and self._could_hold_enough())

    def _could_hold_enough(self) -> bool:
        """Whether there is enough to read, though whole batches left some of it out.

        Where another batch did not fit, Kafka's answer has its beginning, and counts it.
        """
        left: int = self._room
        could_hold = 0
        for wanted, data in self.found:
            size: int = len(data.records or b"")
            could_hold += size
            if _reads_on(wanted.fetch_offset, data, self.request.isolation_level):
                could_hold += max(0, min(left, wanted.partition_max_bytes) - size)
            left -= size
        return could_hold >= self.min_bytes

    def _redirect(self, partition: Partition, wanted: FetchPartition, data: PartitionData) -> bool:
        """Whether the client should read a follower in its rack instead; `data` then names it."""
        partition.check_epoch(wanted.current_leader_epoch)
        if partition.leading is None:
            is_in_sync = partition.node_id in partition.in_sync_replicas
            if not is_in_sync or self._replicas.is_cut_off(partition):
                # This replica may lag for long, and a consumer that waits here would not notice.
                raise not_leader("this follower is not in sync")
            if wanted.fetch_offset > partition.log.log_end_offset:
                # Not OFFSET_OUT_OF_RANGE: the leader has the offset, and the consumer must not
                # reset.
                raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE)
            return False
        chosen = self._replicas.read_replica(partition, self.request.rack_id, wanted.fetch_offset)
        if chosen is None:
            return False
        data.preferred_read_replica = chosen
        return True

    def _fail(self, wanted: FetchPartition, data: PartitionData, code: ErrorCode) -> None:
        data.error_code = code
        data.high_watermark = -1
        data.records = b""
        if self._hints is not None and code in HINTED:
            leader, epoch = self._hints.leader_of(wanted.topic_id, wanted.topic, wanted.index, code)
            data.current_leader = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)

    def response(self) -> FetchResponse:
        """Build the answer from the last read."""
        session = self.session
        topics: list[FetchableTopicResponse] = []
        served: list[FetchPartition] = []
        for wanted, data in self.found:
            if not self._full and not _has_changed(wanted, data):
                continue
            if session is not None:
                wanted.last_error = data.error_code
                wanted.last_high_watermark = data.high_watermark
                wanted.last_log_start = data.log_start_offset
                if data.records:
                    served.append(wanted)
            last = topics[-1] if topics else None
            if last is None or (last.topic, last.topic_id) != (wanted.topic, wanted.topic_id):
                last = FetchableTopicResponse(
                    topic=wanted.topic, topic_id=wanted.topic_id, partitions=[]
                )
                topics.append(last)
            last.partitions.append(data)
        if session is not None:
            session.rotate(served)
        response = FetchResponse(
            session_id=0 if session is None else session.identity, responses=topics
        )
        if self._hints is not None and self._hints.leaders:
            response.node_endpoints = [
                NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)
                for node_id, host, port, rack in self._hints.endpoints()
            ]
        return response


def _check_may_wait(partition: Partition, fetch_offset: int, isolation: int) -> None:
    """Raise ApiError if a consumer has read everything that a cut-off leader has.

    Committed records stay readable there, but a consumer that waits for more would wait forever.
    """
    if fetch_offset >= partition.readable_end(isolation):
        raise CutOffError


def _reads_on(offset: int, data: PartitionData, isolation: int) -> bool:
    """Whether there is more to read behind a partition's answer."""
    for _, header in iterate_headers(data.records or b""):
        offset = header.next_offset
    is_committed = isolation == ISOLATION_READ_COMMITTED
    return offset < (data.last_stable_offset if is_committed else data.high_watermark)


def _has_changed(wanted: FetchPartition, data: PartitionData) -> bool:
    """An incremental answer holds what changed since the session's last one (KIP-227)."""
    return bool(
        data.records
        or data.error_code
        or wanted.last_error
        or data.preferred_read_replica >= 0
        or data.high_watermark != wanted.last_high_watermark
        or data.log_start_offset != wanted.last_log_start
    )


class _DelayedFetch(DelayedOperation):
    """A consumer's fetch that waits until its partitions have enough data or its time is over."""

    __slots__ = ("_fetch", "_is_scheduled", "_missing", "_partitions")

    holds_back = True  # as in Kafka: its answer may be large

    def __init__(self, fetch: _Fetch, context: RequestContext) -> None:
        super().__init__(context.api_version, context.correlation_id)
        self._fetch = fetch
        self._missing = fetch.min_bytes - fetch.bytes_found
        self._is_scheduled = False
        self._partitions = fetch.partitions()
        for partition in self._partitions:
            partition.fetch_waiters[self] = None

    def appended(self, size: int) -> None:
        """Count appended bytes; after the current request read again if they may be enough."""
        self._missing -= size
        if self._missing <= 0 and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._retry)

    def give_up(self) -> bool:
        """Answer a consumer that waits for more records from a cut-off leader."""
        self._retry()
        return self._fetch.is_cut_off

    def expire(self) -> None:
        """Answer with the data at hand: max_wait_ms is over."""
        self._fetch.read()
        self._answer()

    def abandon(self) -> None:
        """Stop waiting: the consumer is gone."""
        super().abandon()
        if self.complete():
            self._leave()

    def _retry(self) -> None:
        self._is_scheduled = False
        if not self.is_delayed:
            return
        try:
            is_enough = self._fetch.read()
        except Exception as error:  # noqa: BLE001 (handled as the handler's own failure)
            self.fail(error)
            return
        if is_enough:
            self._answer()
        else:
            self._missing = self._fetch.min_bytes - self._fetch.bytes_found

    def _answer(self) -> None:
        if self.complete():
            self._leave()
            self.send(self._fetch.response())

    def _leave(self) -> None:
        for partition in self._partitions:
            partition.fetch_waiters.pop(self, None)
