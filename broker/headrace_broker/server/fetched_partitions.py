"""The partitions that are fetched from one source, and what its answers do to their logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import structlog

from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages import fetch
from headrace_broker.protocol.types import NodeId
from headrace_broker.replication.fetch_state import FetchState, Position
from headrace_broker.replication.follower import EpochEnd
from headrace_broker.server.fast_fetch import Found
from headrace_broker.server.fetch_topics import Key
from headrace_broker.server.partition import Partition
from headrace_broker.server.replica_host import ReplicaHost

log = structlog.get_logger()

_BACKOFF_SECONDS_MIN = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class FetcherConfig:
    """Kafka's replica.fetch settings."""

    wait_max_ms: int = 500
    max_bytes: int = 1024 * 1024
    response_max_bytes: int = 10 * 1024 * 1024
    backoff_ms: int = 200
    timeout_ms: int = 5000
    """How long beyond the wait an answer may take: a source that hangs is asked anew then."""


class FetchedPartitions:
    """Which partitions a fetcher asks for, from where on, and which wait before they are again.

    `schedule` is called when there is something new to ask for, `spawn` with work that waits.
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
        self._delayed: set[Key] = set()
        self._backoff = 0.0
        self._retry_delayed: asyncio.TimerHandle | None = None

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
        self.state.set(key, partition.position())
        self._schedule()

    def remove(self, key: Key) -> None:
        """Fetch a partition no more."""
        self._partitions.pop(key, None)
        self._delayed.discard(key)
        self.state.remove(key)

    def close(self) -> None:
        """Ask for nothing more."""
        if self._retry_delayed is not None:
            self._retry_delayed.cancel()

    def back_off(self) -> float:
        """Return how many seconds to wait, longer each time that nothing goes well between."""
        self._backoff = min(
            max(self._backoff * 2, _BACKOFF_SECONDS_MIN), self._config.backoff_ms / 1000
        )
        return self._backoff

    def went_well(self) -> None:
        """Wait for a short time only after the next failure."""
        self._backoff = 0.0

    # answers

    def take(
        self, key: Key, number: int, data: Found | fetch.PartitionData, to_sync: list[Partition]
    ) -> None:
        """Act upon what the answer to request `number` says of a partition.

        One that counts only once it is on disk is added to `to_sync`.
        """
        position = self.state.answered(key, number)
        partition = self._partitions.get(key)
        if position is None or partition is None:
            return
        if partition.leading is not None or partition.leader_epoch != position.leader_epoch:
            return  # the metadata moved on; `follow` has been or will be called
        try:
            if type(data) is Found or self._is_usual(key, partition, data):
                self._append(key, partition, position, data)
        except ApiError as error:
            self._warn(partition, error)
            self._delay(key)
        except LogDirectoryFailure as failure:
            self._host.on_failure(failure)  # which takes the partition away from here
            return
        if partition.flushing is not None:
            to_sync.append(partition)

    def _is_usual(self, key: Key, partition: Partition, data: Any) -> bool:
        """Whether data has neither an error nor a log that parts from ours; else act upon it."""
        diverging = data.diverging_epoch
        if data.error_code != ErrorCode.NONE:
            self._refused(key, partition, data)
        elif diverging.epoch >= 0:
            self._truncate(key, partition, EpochEnd(diverging.epoch, diverging.end_offset))
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
            self.state.set(key, partition.position())

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
                self.state.remove(key)
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
        self.state.remove(key)
        self._delayed.add(key)
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
        """Whether a replica that is not in sync has to wait (KIP-73)."""
        return (
            partition.is_follower_throttled
            and self._host.node_id not in partition.in_sync_replicas
            and self._host.follower_throttle.is_exceeded(self._host.now_ms())
        )
