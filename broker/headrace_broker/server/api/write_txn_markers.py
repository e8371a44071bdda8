"""WriteTxnMarkers: end transactions in partitions that this broker leads.

Versions: 1 flexible · 2 transaction version (KIP-1228).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from headrace_broker.coordinator.transactions.transaction import TransactionVersion
from headrace_broker.log.markers import Marker
from headrace_broker.metadata.entities import GROUP_METADATA_TOPIC
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from headrace_broker.server.api.services import (
    WithClock,
    WithConfig,
    WithGroups,
    WithReplicas,
)
from headrace_broker.server.partitions.marker_writes import write_marker

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.WRITE_TXN_MARKERS


class Node(WithClock, WithConfig, WithGroups, WithReplicas, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """Answer when every marker is committed, and its group offsets are readable (KAFKA-17507).

    A marker that is not committed in time does not delay the others; the coordinator sends it
    again.
    """
    del context
    return await write_markers(broker, request)


async def write_markers(broker: Node, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    """Write what can be written; each partition has its own outcome."""
    waiting: list[tuple[asyncio.Future[None], WritableTxnMarkerPartitionResult]] = []
    response = WriteTxnMarkersResponse()
    for asked in request.markers:
        result = WritableTxnMarkerResult(producer_id=asked.producer_id)
        response.markers.append(result)
        for topic in asked.topics:
            written = WritableTxnMarkerTopicResult(name=topic.name)
            result.topics.append(written)
            for index in topic.partition_indexes:
                outcome = WritableTxnMarkerPartitionResult(partition_index=index)
                written.partitions.append(outcome)
                try:
                    future = _write(broker, topic.name, index, _marker(asked))
                except ApiError as error:
                    outcome.error_code = error.code
                else:
                    if future is not None:
                        # This handler may be cancelled before it looks at the outcome.
                        future.add_done_callback(_retrieve)
                        waiting.append((future, outcome))
    if waiting:
        # Half of the coordinator's timeout, so that it learns which markers were written.
        seconds = broker.config.values["replica.socket.timeout.ms"] / 2000
        await asyncio.wait([future for future, _ in waiting], timeout=seconds)
    for future, outcome in waiting:
        if not future.done():
            outcome.error_code = ErrorCode.REQUEST_TIMED_OUT
        else:
            try:
                future.result()
            except ApiError as error:
                outcome.error_code = error.code
    return response


def _retrieve(future: asyncio.Future[None]) -> None:
    """Retrieve the exception of a future, which nothing may wait for any longer."""
    if not future.cancelled():
        future.exception()


def _marker(asked: WritableTxnMarker) -> Marker:
    return Marker(
        producer_id=asked.producer_id,
        producer_epoch=asked.producer_epoch,
        coordinator_epoch=asked.coordinator_epoch,
        commits=asked.transaction_result,
        bumped_epoch=asked.transaction_version >= TransactionVersion.TV_2,
    )


def _write(broker: Node, topic: str, index: int, marker: Marker) -> asyncio.Future[None] | None:
    """Write one marker; return None if it is committed, else a future for its commit."""
    partition = broker.replicas.partition(topic, index)
    if topic == GROUP_METADATA_TOPIC:
        return asyncio.ensure_future(broker.groups.write_marker(partition.index, marker))
    end = write_marker(partition, marker, broker.clock.now_ms())
    return partition.wait_committed(end)
