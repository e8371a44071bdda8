"""`MarkerSender`: has the markers of decided transactions written by the partitions' leaders.

Owns the markers that are not sent yet, by broker: those that arrive within one turn of the event
loop go out in one WriteTxnMarkers request. A marker is sent again until it is written, its topic is
deleted, its shard is closed, or a partition knows a later coordinator, which then sends it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from headrace_broker.coordinator.transactions.states import TransactionStatus
from headrace_broker.coordinator.transactions.transaction import TopicPartition, Transaction
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from headrace_broker.protocol.types import NO_NODE, NodeId, PartitionIndex
from headrace_broker.server.peers.peer_connection import PeerUnavailable

if TYPE_CHECKING:
    from headrace_broker.server.transactions.shard_driver import ShardDriver

log = structlog.get_logger(__name__)

SendMarkers = Callable[[NodeId, WriteTxnMarkersRequest], Awaitable[WriteTxnMarkersResponse]]

_RETRY_DELAY_S: Final = 0.05
_MARKERS_MAX: Final = 1000
"""In one request."""
_IN_FLIGHT_MAX: Final = 5
"""Requests in flight to one broker."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Outcome:
    """A decided transaction, and its partitions that one broker leads."""

    shard: "ShardDriver"
    transaction: Transaction
    partitions: list[TopicPartition] = field(default_factory=list)

    def message(self) -> WritableTxnMarker:
        by_topic: dict[str, list[int]] = defaultdict(list)
        for topic, index in self.partitions:
            by_topic[topic].append(index)
        transaction = self.transaction
        return WritableTxnMarker(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.epoch,
            transaction_result=transaction.status is TransactionStatus.PREPARE_COMMIT,
            topics=[
                WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
                for name, indexes in by_topic.items()
            ],
            coordinator_epoch=self.shard.coordinator_epoch,
            transaction_version=transaction.client_version,
        )


class MarkerSender:
    """The markers that one broker is sending."""

    def __init__(self, image: Callable[[], MetadataImage], send: SendMarkers) -> None:
        """`send` asks a broker, this one included; it raises PeerUnavailable."""
        self._image = image
        self._send = send
        self._waiting: dict[NodeId, list[_Outcome]] = {}
        self._in_flight: dict[NodeId, int] = defaultdict(int)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_scheduled = False
        self._is_closed = False

    def send(
        self, shard: "ShardDriver", transaction: Transaction, partitions: Collection[TopicPartition]
    ) -> None:
        """Have the transaction's outcome written to partitions."""
        if self._is_closed:
            return
        image = self._image()
        by_node: dict[NodeId, list[TopicPartition]] = defaultdict(list)
        gone: list[TopicPartition] = []
        for where in sorted(partitions):
            partition = image.partition(where[0], PartitionIndex(where[1]))
            if partition is None:
                gone.append(where)
            else:
                by_node[partition.leader].append(where)
        for node_id, wanted in by_node.items():
            outcome = _Outcome(shard=shard, transaction=transaction, partitions=wanted)
            if node_id == NO_NODE:
                self._retry(outcome, wanted)
            else:
                self._waiting.setdefault(node_id, []).append(outcome)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)
        if gone:
            # The topic is deleted: no marker is needed.
            shard.note_marked(transaction, gone)

    def close(self) -> None:
        """Stop sending."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()

    def _flush(self) -> None:
        self._is_scheduled = False
        for node_id in list(self._waiting):
            while node_id in self._waiting and self._in_flight[node_id] < _IN_FLIGHT_MAX:
                waiting = self._waiting.pop(node_id)
                now, later = waiting[:_MARKERS_MAX], waiting[_MARKERS_MAX:]
                if later:
                    self._waiting[node_id] = later
                self._in_flight[node_id] += 1
                task = asyncio.get_running_loop().create_task(self._exchange(node_id, now))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _exchange(self, node_id: NodeId, outcomes: list[_Outcome]) -> None:
        request = WriteTxnMarkersRequest(markers=[each.message() for each in outcomes])
        try:
            response = await self._send(node_id, request)
            results = response.markers
        except PeerUnavailable as error:
            log.debug("markers are sent again", broker=node_id, error=str(error))
            results = []
        finally:
            self._in_flight[node_id] -= 1
        for position, outcome in enumerate(outcomes):
            self._take(outcome, results[position] if position < len(results) else None)
        self._flush()

    def _take(self, outcome: _Outcome, result: WritableTxnMarkerResult | None) -> None:
        """Remove the markers that are written, and retry the rest."""
        name = outcome.transaction.transactional_id
        written: list[TopicPartition] = []
        left = set(outcome.partitions)
        is_fenced = False
        for topic in result.topics if result is not None else ():
            for answer in topic.partitions:
                where = (topic.name, answer.partition_index)
                if answer.error_code == ErrorCode.NONE:
                    written.append(where)
                elif answer.error_code == ErrorCode.INVALID_PRODUCER_EPOCH:
                    # The log has a newer epoch, which no producer gets before the older transaction
                    # ended.
                    log.warning("a partition is ahead of its marker", id=name, partition=where)
                    written.append(where)
                elif answer.error_code == ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                    # As in Kafka: the new coordinator of the id reads the transaction, and
                    # completes it.
                    log.warning("another coordinator wrote markers", id=name, partition=where)
                    is_fenced = True
        left.difference_update(written)
        if written:
            outcome.shard.note_marked(outcome.transaction, written)
        if left and not is_fenced:
            self._retry(outcome, sorted(left))

    def _retry(self, outcome: _Outcome, partitions: list[TopicPartition]) -> None:
        if not self._is_closed and outcome.shard.wants_markers(outcome.transaction):
            loop = asyncio.get_running_loop()
            loop.call_later(
                _RETRY_DELAY_S, self._send_again, outcome.shard, outcome.transaction, partitions
            )

    def _send_again(
        self, shard: "ShardDriver", transaction: Transaction, partitions: list[TopicPartition]
    ) -> None:
        if shard.wants_markers(transaction):
            self.send(shard, transaction, partitions)
