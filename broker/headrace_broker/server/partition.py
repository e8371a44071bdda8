"""One replica of one partition on this broker: its log, its epoch, its high watermark, who waits.

Owns the rule of what is readable and what is acknowledged. With one replica the in-sync set is this
broker, so the high watermark follows the log's end; `_advance_high_watermark` is the place where
the replication layer decides otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import LeaderEpoch, NodeId, Offset, PartitionIndex, TopicId

if TYPE_CHECKING:
    from headrace_broker.log.partition_log import AppendInfo, PartitionLog
    from headrace_broker.metadata.entities import PartitionImage

ISOLATION_READ_COMMITTED = 1
ANY_EPOCH = -1  # a client that knows no leader epoch


class AppendWaiter(Protocol):
    """Somebody who waits for records, told at each append of how many bytes came."""

    def appended(self, size: int) -> None:
        """Take note; must not append, and must not raise."""


class Partition:
    """A replica. Its state changes in place: it is on the path of every append and every fetch."""

    __slots__ = (
        "_commit_waiters",
        "fetch_waiters",
        "high_watermark",
        "in_sync_replicas",
        "index",
        "leader",
        "leader_epoch",
        "log",
        "min_in_sync_replicas",
        "node_id",
        "partition_epoch",
        "replicas",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        topic_id: TopicId,
        index: PartitionIndex,
        log: PartitionLog,
        node_id: NodeId,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.log = log
        self.node_id = node_id
        self.leader = NodeId(-1)
        self.leader_epoch = LeaderEpoch(-1)
        self.partition_epoch = -1
        self.replicas: Sequence[NodeId] = ()
        self.in_sync_replicas: Sequence[NodeId] = ()
        self.min_in_sync_replicas = 1
        self.high_watermark = Offset(log.log_start_offset)
        self.fetch_waiters: dict[AppendWaiter, None] = {}
        self._commit_waiters: list[tuple[Offset, asyncio.Future[None]]] = []

    def apply(self, image: PartitionImage, min_in_sync_replicas: int) -> None:
        """Take over what the metadata says of this partition."""
        self.min_in_sync_replicas = min_in_sync_replicas
        self.replicas = image.replicas
        self.in_sync_replicas = image.isr
        self.partition_epoch = image.partition_epoch
        self.leader = image.leader
        if image.leader_epoch > self.leader_epoch:
            self.leader_epoch = image.leader_epoch
            if self.leader == self.node_id:
                self.log.leader_epochs.assign(image.leader_epoch, self.log.log_end_offset)
        self._advance_high_watermark()

    def append(self, records: bytes | memoryview, acks: int, now_ms: int) -> AppendInfo:
        """Append a producer's batches as the leader; raise ApiError with nothing appended."""
        if self.leader != self.node_id:
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker does not lead the partition"
            )
        if acks == -1 and len(self.in_sync_replicas) < self.min_in_sync_replicas:
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(self.in_sync_replicas)} in-sync replicas, min.insync.replicas is "
                f"{self.min_in_sync_replicas}",
            )
        info = self.log.append_as_leader(records, self.leader_epoch, now_ms=now_ms)
        if not info.is_duplicate:
            self._advance_high_watermark()
            if self.fetch_waiters:
                size = len(records)
                for waiter in list(self.fetch_waiters):
                    waiter.appended(size)
        return info

    def wait_committed(self, offset: Offset) -> asyncio.Future[None] | None:
        """Return None where all below `offset` is committed, else a future of that moment."""
        if self.high_watermark >= offset:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._commit_waiters.append((offset, future))
        return future

    def _advance_high_watermark(self) -> None:
        if self.leader != self.node_id or len(self.in_sync_replicas) > 1:
            return
        end = self.log.log_end_offset
        if end > self.high_watermark:
            self.high_watermark = self.log.high_watermark = end
            if self._commit_waiters:
                self._release_committed()

    def _release_committed(self) -> None:
        waiting, self._commit_waiters = self._commit_waiters, []
        for offset, future in waiting:
            if offset > self.high_watermark:
                self._commit_waiters.append((offset, future))
            elif not future.done():
                future.set_result(None)

    def check_leader(self, client_epoch: int) -> None:
        """Raise ApiError unless we lead and the client's leader epoch is ours (KIP-320)."""
        if self.leader != self.node_id:
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker does not lead the partition"
            )
        if client_epoch not in (ANY_EPOCH, self.leader_epoch):
            if client_epoch < self.leader_epoch:
                raise ApiError(
                    ErrorCode.FENCED_LEADER_EPOCH, f"the leader epoch is {self.leader_epoch}"
                )
            raise ApiError(
                ErrorCode.UNKNOWN_LEADER_EPOCH, f"the leader epoch is {self.leader_epoch}"
            )

    def readable_end(self, isolation: int) -> Offset:
        """The offset below which a consumer may read: last stable offset or high watermark."""
        if isolation == ISOLATION_READ_COMMITTED:
            return Offset(min(self.high_watermark, self.log.last_stable_offset))
        return self.high_watermark

    def read(
        self, offset: int, max_bytes: int, *, isolation: int, at_least_one: bool
    ) -> bytes | memoryview:
        """Return whole batches from the one that holds `offset`; raise ApiError out of range."""
        log = self.log
        if offset < log.log_start_offset or offset > log.log_end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is outside {log.log_start_offset} to {log.log_end_offset}",
            )
        end = self.readable_end(isolation)
        if offset >= end:
            return b""
        return log.read(Offset(offset), max_bytes, upper_bound=end, at_least_one=at_least_one)

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch up to `epoch` that has records, and where it ended (KIP-320)."""
        if epoch == self.leader_epoch:
            return epoch, self.log.log_end_offset
        return self.log.leader_epochs.end_offset_for(epoch)

    def delete_records(self, before: int) -> Offset:
        """Move the log's start to `before` (-1: the high watermark); return the low watermark."""
        self.check_leader(ANY_EPOCH)
        target = self.high_watermark if before == -1 else before
        if target < 0 or target > self.high_watermark:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"records up to {target} cannot be deleted: the high watermark is "
                f"{self.high_watermark}",
            )
        self.log.delete_records_before(Offset(target))
        return Offset(self.log.log_start_offset)

    def close(self, error: ApiError) -> None:
        """Tell everybody who waits that this replica is gone."""
        waiting, self._commit_waiters = self._commit_waiters, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)
        for waiter in list(self.fetch_waiters):
            waiter.appended(2**31)
