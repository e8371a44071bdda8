"""The share coordinator of this broker: routes share partitions to the shards it owns.

Owns which partitions of `__share_group_state` this broker leads, and the timers that keep that
topic short. `headrace_broker.coordinator.share_state` decides what a request means.
"""

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any
from uuid import UUID

from headrace_broker.coordinator.partitioning import partition_for_group
from headrace_broker.coordinator.share_state.shard import (
    StateChange,
    decide_delete,
    decide_initialize,
    decide_read,
    decide_write,
)
from headrace_broker.coordinator.share_state.state import ShareKey, ShareState
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import PartitionIndex, TopicId
from headrace_broker.server.clock import Clock
from headrace_broker.server.shares.state_log import ShareStateLog
from headrace_broker.server.shares.state_shard import StateShardDriver, not_coordinator


def coordinator_key(key: ShareKey) -> str:
    """Return the key of a share partition in FindCoordinator: group:topic id:partition."""
    topic_id = urlsafe_b64encode(key.topic_id.bytes).decode().rstrip("=")
    return f"{key.group_id}:{topic_id}:{key.partition}"


class ShareCoordinator:
    """The share partitions that this broker coordinates. All methods run on the event loop."""

    def __init__(
        self, values: Mapping[str, Any], clock: Clock, image: Callable[[], MetadataImage]
    ) -> None:
        self.partition_count: int = values["share.coordinator.state.topic.num.partitions"]
        self._values = values
        self._clock = clock
        self._image = image
        self._shards: dict[PartitionIndex, StateShardDriver] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Begin to prune the topic."""
        self._repeat("share.coordinator.state.topic.prune.interval.ms", StateShardDriver.prune)
        cold = "share.coordinator.cold.partition.snapshot.interval.ms"
        self._repeat(cold, lambda shard: shard.refresh(self._values[cold]))

    def _repeat(
        self, setting: str, work: Callable[[StateShardDriver], Coroutine[Any, Any, None]]
    ) -> None:
        def run() -> None:
            for shard in self._shards.values():
                self._spawn(work(shard))
            self._repeat(setting, work)

        delay_s = self._values[setting] / 1000
        self._timers[setting] = asyncio.get_running_loop().call_later(delay_s, run)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Stop serving every partition."""
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        for index in list(self._shards):
            self.unload(index)

    def load(self, index: PartitionIndex, state_log: ShareStateLog) -> None:
        """Become the coordinator of a partition: replay it, then serve it."""
        self.unload(index)
        shard = self._shards[index] = StateShardDriver(index, state_log, self._clock)
        shard.load()

    def unload(self, index: PartitionIndex) -> None:
        """Stop being the coordinator of a partition."""
        shard = self._shards.pop(index, None)
        if shard is not None:
            shard.close()

    def partition_for(self, key: str) -> PartitionIndex:
        """Return the partition of `__share_group_state` for a key of `coordinator_key`."""
        return partition_for_group(key, self.partition_count)

    def topics_deleted(self, topic_ids: Collection[UUID]) -> None:
        """Delete the state of deleted topics."""
        for shard in self._shards.values():
            self._spawn(shard.topics_deleted(topic_ids))

    # ---- requests

    async def initialize(self, key: ShareKey, state_epoch: int, start_offset: int) -> None:
        """Initialize a share partition's state with a new state epoch. Raises ApiError."""
        shard = self._shard_of(key)
        now_ms = self._clock.now_ms()
        await shard.submit(
            lambda state: (decide_initialize(state, key, state_epoch, start_offset, now_ms), None)
        )

    async def read(self, key: ShareKey, leader_epoch: int) -> ShareState:
        """Return the state to a partition's leader, and record its leader epoch."""
        shard = self._shard_of(key)
        now_ms = self._clock.now_ms()
        return await shard.submit(
            lambda state: (
                decide_read(state, key, leader_epoch, now_ms),
                state.states.get(key, ShareState()),
            )
        )

    async def summarize(self, key: ShareKey) -> ShareState:
        """Return the state, for reading only."""
        shard = self._shard_of(key)
        return await shard.submit(lambda state: ([], state.states.get(key, ShareState())))

    async def write(self, key: ShareKey, change: StateChange) -> None:
        """Persist a change from a partition's leader. Raises ApiError."""
        shard = self._shard_of(key)
        now_ms = self._clock.now_ms()
        updates_max = self._values["share.coordinator.snapshot.update.records.per.snapshot"]
        await shard.submit(
            lambda state: (decide_write(state, key, change, now_ms, updates_max), None)
        )

    async def delete(self, key: ShareKey) -> None:
        """Delete a share partition's state. Raises ApiError."""
        shard = self._shard_of(key, must_exist=False)
        await shard.submit(lambda _state: (decide_delete(key), None))

    def _shard_of(self, key: ShareKey, *, must_exist: bool = True) -> StateShardDriver:
        if not key.group_id:
            raise ApiError(ErrorCode.INVALID_REQUEST, "a group id is not empty")
        shard = self._shards.get(self.partition_for(coordinator_key(key)))
        if shard is None:
            raise not_coordinator()
        topic = self._image().topics_by_id.get(TopicId(key.topic_id))
        if must_exist and (topic is None or key.partition not in topic.partitions):
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"there is no partition {key.partition} of topic id {key.topic_id}",
            )
        return shard
