"""Tells the controller which log directory holds which replica (AssignReplicasToDirs, KIP-858).

Level-triggered: an assignment stays noted until the metadata agrees with it or the replica is gone.
One request is in flight at a time; it carries every assignment noted so far.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING
from uuid import UUID

import structlog

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectoryData,
    AssignReplicasToDirsRequestPartitionData,
    AssignReplicasToDirsRequestTopicData,
    AssignReplicasToDirsResponse,
)
from headrace_broker.protocol.types import BrokerEpoch, NodeId
from headrace_broker.server.peers.peers import PeerUnavailable

if TYPE_CHECKING:
    from headrace_broker.server.peers.peers import PeerConnections

log = structlog.get_logger()

_RETRY_SECONDS = 0.1
_TIMEOUT_MS = 5000
# Kafka's AssignmentsManager.MAX_ASSIGNMENTS_PER_REQUEST, so that one request is one batch.
_PARTITIONS_PER_REQUEST_MAX = 2250

_FINAL = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.INELIGIBLE_REPLICA,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
"""Done; or this is the last in-sync replica, or this broker no longer holds the replica."""

_Replica = tuple[UUID, int]


class DirectoryAssignments:
    """The assignments that this broker reports. Nothing is sent before `start`."""

    def __init__(
        self,
        node_id: NodeId,
        peers: PeerConnections,
        broker_epoch: Callable[[], BrokerEpoch],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._node_id = node_id
        self._peers = peers
        self._broker_epoch = broker_epoch
        self._on_failure = on_failure
        self._wanted: dict[_Replica, UUID] = {}
        self._is_started = False
        self._sender: asyncio.Task[None] | None = None

    def note(self, topic_id: UUID, index: int, known: UUID, actual: UUID) -> None:
        """Compare the directory in a replica's metadata with the one that holds it."""
        if known == actual:
            self._wanted.pop((topic_id, index), None)
        elif self._wanted.get((topic_id, index)) != actual:
            self._wanted[topic_id, index] = actual
            self._send()

    def start(self) -> None:
        """Begin to send: this broker is registered."""
        self._is_started = True
        self._send()

    async def close(self) -> None:
        """Send nothing more."""
        self._is_started = False
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)

    def _send(self) -> None:
        is_idle = self._sender is None or self._sender.done()
        if self._is_started and is_idle and self._wanted:
            self._sender = asyncio.get_running_loop().create_task(self._send_all())
            self._sender.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)

    async def _send_all(self) -> None:
        await asyncio.sleep(0)  # the same metadata change may bring more partitions
        while self._wanted:
            batch = dict(islice(self._wanted.items(), _PARTITIONS_PER_REQUEST_MAX))
            try:
                response = await self._peers.to_controller(
                    self._request(batch), timeout_ms=_TIMEOUT_MS
                )
            except PeerUnavailable as error:
                log.debug("log directories could not be assigned yet", cause=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if response.error_code != ErrorCode.NONE:
                log.info("log directories could not be assigned yet", code=response.error_code)
            if response.error_code != ErrorCode.NONE or not self._take(batch, response):
                await asyncio.sleep(_RETRY_SECONDS)

    def _request(self, batch: dict[_Replica, UUID]) -> AssignReplicasToDirsRequest:
        found: dict[UUID, dict[UUID, list[int]]] = {}
        for (topic_id, index), directory in batch.items():
            found.setdefault(directory, {}).setdefault(topic_id, []).append(index)
        return AssignReplicasToDirsRequest(
            broker_id=self._node_id,
            broker_epoch=self._broker_epoch(),
            directories=[
                AssignReplicasToDirsRequestDirectoryData(
                    id=directory,
                    topics=[
                        AssignReplicasToDirsRequestTopicData(
                            topic_id=topic_id,
                            partitions=[
                                AssignReplicasToDirsRequestPartitionData(partition_index=index)
                                for index in indexes
                            ],
                        )
                        for topic_id, indexes in topics.items()
                    ],
                )
                for directory, topics in found.items()
            ],
        )

    def _take(self, batch: dict[_Replica, UUID], response: AssignReplicasToDirsResponse) -> bool:
        """Apply the answers; return False where something has to be sent again."""
        for directory in response.directories:
            for topic in directory.topics:
                for each in topic.partitions:
                    replica = topic.topic_id, each.partition_index
                    if each.error_code not in _FINAL:
                        continue
                    sent = batch.pop(replica, None)
                    if sent is not None and self._wanted.get(replica) == sent:
                        del self._wanted[replica]
        return not batch
