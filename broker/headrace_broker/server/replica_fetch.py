"""One partition in a follower's fetch session: what it asked for, and what it was told last."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.fetch import (
    EpochEndOffset,
    LeaderIdAndEpoch,
    PartitionData,
)
from headrace_broker.protocol.types import Offset
from headrace_broker.replication.follower import EpochEnd, diverging_epoch
from headrace_broker.server.fast_fetch import Found

if TYPE_CHECKING:
    from headrace_broker.server.partition import Partition
    from headrace_broker.server.replica_manager import ReplicaManager
    from headrace_broker.server.replica_sessions import ReplicaSession

_NOTHING = (-1, -1)


class ReplicaFetch:
    """What a follower asked for of one partition. It is the partition's `FollowerFetch`."""

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
        self._told = _NOTHING
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

    def ask(
        self, fetch_offset: int, last_fetched_epoch: int, leader_epoch: int, max_bytes: int
    ) -> None:
        """Take over what the follower asks for; that it asks says what it has."""
        self.fetch_offset = fetch_offset
        self.last_fetched_epoch = last_fetched_epoch
        self.leader_epoch = leader_epoch
        self.max_bytes = max_bytes
        self._problem = None
        try:
            self._admit()
        except ApiError as error:
            self._problem = error

    def _admit(self) -> None:
        node_id = self._session.node_id
        partition = self.partition
        if partition is None or partition.leading is None:
            # One that is gone leads no more.
            found = self._replicas.partition_by_id(self.topic_id, self.index)
            if found is not partition:
                self.leave()
                self.partition = partition = found
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

    @property
    def is_due(self) -> bool:
        """Whether there is something that should go out now: records, a problem."""
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
    def is_worth_telling(self) -> bool:
        """Whether a follower that is told at all is told of this: a high watermark, a log start."""
        partition = self.partition
        return partition is None or self._told != (
            partition.high_watermark,
            partition.log.log_start_offset,
        )

    @property
    def is_behind(self) -> bool:
        """Whether there are records that it was not sent for want of room."""
        partition = self.partition
        return (
            partition is not None
            and self._problem is None
            and self.fetch_offset < partition.log.log_end_offset
        )

    def take(self, limit: int, *, at_least_one: bool) -> Found | PartitionData | None:
        """Return the news, if there is any; it counts as told then."""
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
        told = (int(partition.high_watermark), int(partition.log.log_start_offset))
        if not records and problem is None and told == self._told:
            return None
        self._told = told
        found = Found(self.topic_bytes, self.index, *told, records)
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


def partition_data(found: Found) -> PartitionData:
    """Return what was found as the general codec takes it."""
    return PartitionData(
        partition_index=found.partition,
        high_watermark=found.high_watermark,
        last_stable_offset=-1,
        log_start_offset=found.log_start_offset,
        aborted_transactions=None,
        records=found.records,
    )
