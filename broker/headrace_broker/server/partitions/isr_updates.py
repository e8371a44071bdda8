"""Asks the controller to change in-sync sets: AlterPartition, batched, one request at a time.

A request carries each partition's `leading.pending`. Until the answer or newer metadata comes, the
leader counts the pending set wherever that is safer (KIP-497). If the outcome of a request is
unknown, the same request is sent again: the partition epoch in it prevents a second application.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from uuid import UUID

import structlog

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerState,
)
from headrace_broker.protocol.types import NodeId
from headrace_broker.replication.leader import IsrUpdate
from headrace_broker.server.peers.peers import PeerUnavailable

if TYPE_CHECKING:
    from headrace_broker.server.partitions.replica_host import LedPartition
    from headrace_broker.server.partitions.replica_manager import ReplicaManager

log = structlog.get_logger()

_RETRY_SECONDS = 0.1
_TIMEOUT_MS = 5000

_NOT_APPLIED = frozenset(
    {
        ErrorCode.INELIGIBLE_REPLICA,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
"""The controller certainly left the in-sync set unchanged."""

_SUPERSEDED = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Newer metadata will arrive and decide; until then the safer of the two sets counts."""


Batch: TypeAlias = "dict[tuple[UUID, int], tuple[LedPartition, IsrUpdate]]"


class ControllerPeers(Protocol):
    """What is used of `PeerConnections`."""

    async def to_controller(self, request: Any, *, timeout_ms: int = ...) -> Any:
        """Send to the active controller; raises PeerUnavailable."""
        ...


class IsrUpdates:
    """The in-sync set changes that this broker's leaders ask for, and the periodic lag check."""

    def __init__(self, replicas: ReplicaManager, peers: ControllerPeers) -> None:
        self._replicas = replicas
        self._host = replicas.host
        self._peers = peers
        self._wanted: dict[LedPartition, IsrUpdate] = {}
        self._sender: asyncio.Task[None] | None = None
        self._checker: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to check for lagging followers."""
        self._checker = asyncio.get_running_loop().create_task(self._check(), name="isr check")
        self._checker.add_done_callback(self._ended)

    async def close(self) -> None:
        """Stop asking."""
        tasks = [task for task in (self._sender, self._checker) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def request(self, partition: LedPartition) -> None:
        """Ask for a partition's pending in-sync set, together with other pending ones."""
        leading = partition.leading
        if leading is None or leading.pending is None:
            return
        self._wanted[partition] = leading.pending
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._send_all())
            self._sender.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._host.on_failure(error)

    async def _check(self) -> None:
        while True:
            # Kafka's period: a lagging follower is out after at most 1.5 times the lag limit.
            await asyncio.sleep(self._host.lag_time_max_ms / 2000)
            for partition in list(self._replicas):
                partition.shrink_isr()
                partition.expand_isr()

    async def _send_all(self) -> None:
        while self._wanted:
            batch: Batch = {
                (partition.topic_id, int(partition.index)): (partition, update)
                for partition, update in self._wanted.items()
                if _is_pending(partition, update)
            }
            self._wanted = dict(batch.values())
            if not batch:
                return
            try:
                response = await self._peers.to_controller(
                    self._request(batch), timeout_ms=_TIMEOUT_MS
                )
            except PeerUnavailable as error:
                log.info("in-sync sets could not be changed yet", cause=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if response.error_code != ErrorCode.NONE:
                log.info("in-sync sets could not be changed yet", code=response.error_code)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if not self._take(batch, response):
                await asyncio.sleep(_RETRY_SECONDS)

    def _request(self, batch: Batch) -> Any:
        topics: dict[UUID, AlterPartitionRequestTopicData] = {}
        for (topic_id, index), (_, update) in batch.items():
            topic = topics.setdefault(
                topic_id, AlterPartitionRequestTopicData(topic_id=topic_id, partitions=[])
            )
            topic.partitions.append(
                AlterPartitionRequestPartitionData(
                    partition_index=index,
                    leader_epoch=update.leader_epoch,
                    partition_epoch=update.partition_epoch,
                    new_isr_with_epochs=[
                        BrokerState(broker_id=node_id, broker_epoch=epoch)
                        for node_id, epoch in update.members
                    ],
                )
            )
        return AlterPartitionRequest(
            broker_id=self._host.node_id,
            broker_epoch=self._host.broker_epoch,
            topics=list(topics.values()),
        )

    def _take(self, batch: Batch, response: Any) -> bool:
        """Apply the answers; return False where something has to be sent again."""
        answered = True
        for topic in response.topics:
            for data in topic.partitions:
                found = batch.pop((topic.topic_id, data.partition_index), None)
                if found is not None and not self._take_one(*found, data):
                    answered = False
        return answered and not batch

    def _take_one(self, partition: LedPartition, update: IsrUpdate, data: Any) -> bool:
        code = data.error_code
        is_final = code == ErrorCode.NONE or code in _NOT_APPLIED or code in _SUPERSEDED
        if is_final and self._wanted.get(partition) is update:
            del self._wanted[partition]
        if code == ErrorCode.NONE:
            partition.isr_committed(
                data.leader_epoch,
                tuple(NodeId(node) for node in data.isr),
                data.partition_epoch,
            )
        elif code in _NOT_APPLIED and partition.leading is not None:
            partition.leading.withdraw(update)
            partition.advance_high_watermark()
        if code != ErrorCode.NONE:
            log.info(
                "in-sync set was not changed",
                topic=partition.topic,
                partition=partition.index,
                asked_for=sorted(update.nodes),
                code=code,
            )
        return is_final


def _is_pending(partition: LedPartition, update: IsrUpdate) -> bool:
    return partition.leading is not None and partition.leading.pending is update
