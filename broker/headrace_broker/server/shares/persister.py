"""`Persister`: this broker's client of the share coordinators, its own included.

While a coordinator moves, loads or is unreachable, requests are retried for a limited time.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from headrace_broker.coordinator.share_partition.partition import StateBatch
from headrace_broker.coordinator.share_state.shard import StateChange
from headrace_broker.coordinator.share_state.state import ShareKey, ShareState
from headrace_broker.metadata.entities import SHARE_GROUP_STATE_TOPIC
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages import (
    delete_share_group_state,
    initialize_share_group_state,
    read_share_group_state,
    read_share_group_state_summary,
    write_share_group_state,
)
from headrace_broker.protocol.types import NO_NODE, NodeId
from headrace_broker.server.peers.peer_connection import PeerUnavailable
from headrace_broker.server.peers.peers import PeerConnections
from headrace_broker.server.shares.state_coordinator import ShareCoordinator, coordinator_key

_RETRY_DELAY_S: Final = 0.1
_TRIED_TIMEOUTS: Final = 3
"""Retries take this many times share.coordinator.write.timeout.ms."""
_RETRIABLE: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors to retry; the last one occurs while a coordinator's metadata is behind."""


class Persister:
    """Asks share coordinators about share partitions. All methods raise ApiError."""

    def __init__(
        self,
        node_id: NodeId,
        coordinator: ShareCoordinator,
        peers: PeerConnections,
        image: Callable[[], MetadataImage],
        ensure_topic: Callable[[str], Awaitable[None]],
        timeout_ms: int,
    ) -> None:
        self._node_id = node_id
        self._coordinator = coordinator
        self._peers = peers
        self._image = image
        self._ensure_topic = ensure_topic
        self._timeout_ms = timeout_ms

    async def initialize(self, key: ShareKey, state_epoch: int, start_offset: int) -> None:
        """Initialize a share partition's state with a new state epoch."""
        messages = initialize_share_group_state
        data = messages.PartitionData(
            partition=key.partition, state_epoch=state_epoch, start_offset=start_offset
        )
        topic = messages.InitializeStateData(topic_id=key.topic_id, partitions=[data])
        await self._ask(
            key,
            lambda: self._coordinator.initialize(key, state_epoch, start_offset),
            messages.InitializeShareGroupStateRequest(group_id=key.group_id, topics=[topic]),
        )

    async def read(self, key: ShareKey, leader_epoch: int) -> ShareState:
        """Return the state to the leader of this epoch."""
        messages = read_share_group_state
        data = messages.PartitionData(partition=key.partition, leader_epoch=leader_epoch)
        topic = messages.ReadStateData(topic_id=key.topic_id, partitions=[data])
        found = await self._ask(
            key,
            lambda: self._coordinator.read(key, leader_epoch),
            messages.ReadShareGroupStateRequest(group_id=key.group_id, topics=[topic]),
        )
        if isinstance(found, ShareState):
            return found
        return ShareState(
            state_epoch=found.state_epoch,
            leader_epoch=leader_epoch,
            start_offset=found.start_offset,
            batches=tuple(
                StateBatch(
                    first_offset=item.first_offset,
                    last_offset=item.last_offset,
                    delivery_state=item.delivery_state,
                    delivery_count=item.delivery_count,
                )
                for item in found.state_batches
            ),
        )

    async def summarize(self, key: ShareKey) -> ShareState:
        """Return epochs, start offset and count, for reading only."""
        messages = read_share_group_state_summary
        data = messages.PartitionData(partition=key.partition, leader_epoch=-1)
        topic = messages.ReadStateSummaryData(topic_id=key.topic_id, partitions=[data])
        found = await self._ask(
            key,
            lambda: self._coordinator.summarize(key),
            messages.ReadShareGroupStateSummaryRequest(group_id=key.group_id, topics=[topic]),
        )
        if isinstance(found, ShareState):
            return found
        return ShareState(
            state_epoch=found.state_epoch,
            leader_epoch=found.leader_epoch,
            start_offset=found.start_offset,
            complete_count=found.delivery_complete_count,
        )

    async def write(self, key: ShareKey, change: StateChange) -> None:
        """Persist a change of state."""
        messages = write_share_group_state
        data = messages.PartitionData(
            partition=key.partition,
            state_epoch=change.state_epoch,
            leader_epoch=change.leader_epoch,
            start_offset=change.start_offset,
            delivery_complete_count=change.complete_count,
            state_batches=[
                messages.StateBatch(
                    first_offset=item.first_offset,
                    last_offset=item.last_offset,
                    delivery_state=item.delivery_state,
                    delivery_count=item.delivery_count,
                )
                for item in change.batches
            ],
        )
        topic = messages.WriteStateData(topic_id=key.topic_id, partitions=[data])
        await self._ask(
            key,
            lambda: self._coordinator.write(key, change),
            messages.WriteShareGroupStateRequest(group_id=key.group_id, topics=[topic]),
        )

    async def delete(self, key: ShareKey) -> None:
        """Delete the state."""
        messages = delete_share_group_state
        data = messages.PartitionData(partition=key.partition)
        topic = messages.DeleteStateData(topic_id=key.topic_id, partitions=[data])
        await self._ask(
            key,
            lambda: self._coordinator.delete(key),
            messages.DeleteShareGroupStateRequest(group_id=key.group_id, topics=[topic]),
        )

    async def _ask(self, key: ShareKey, here: Callable[[], Awaitable[Any]], request: Any) -> Any:
        """Ask the coordinator, on this broker or elsewhere; return the partition's result."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _TRIED_TIMEOUTS * self._timeout_ms / 1000
        while True:
            try:
                return await self._ask_once(key, here, request)
            except ApiError as error:
                if error.code not in _RETRIABLE or loop.time() >= deadline:
                    raise
                topic_id, index = key.topic_id, key.partition
                topic = self._image().topics_by_id.get(topic_id)  # type: ignore[call-overload]
                if topic is None or index not in topic.partitions:
                    raise
            await asyncio.sleep(_RETRY_DELAY_S)

    async def _ask_once(
        self, key: ShareKey, here: Callable[[], Awaitable[Any]], request: Any
    ) -> Any:
        await self._ensure_topic(SHARE_GROUP_STATE_TOPIC)
        index = self._coordinator.partition_for(coordinator_key(key))
        partition = self._image().partition(SHARE_GROUP_STATE_TOPIC, index)
        leader = NO_NODE if partition is None else partition.leader
        if leader == NO_NODE:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        try:
            if leader == self._node_id:
                async with asyncio.timeout(self._timeout_ms / 1000):
                    return await here()
            response = await self._peers.send(leader, request, timeout_ms=self._timeout_ms)
        except TimeoutError as error:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not committed in time") from error
        except PeerUnavailable as error:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)) from error
        result = response.results[0].partitions[0]
        if result.error_code != ErrorCode.NONE:
            raise ApiError(ErrorCode(result.error_code), result.error_message)
        return result
