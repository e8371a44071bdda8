"""Creates this node's transaction coordinator, and its way to the leaders of partitions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from headrace_broker.server.transactions.coordinator import (
    TransactionCoordinator,
    transaction_config,
)

if TYPE_CHECKING:
    from headrace_broker.metadata.image import MetadataImage
    from headrace_broker.protocol.messages.write_txn_markers import (
        WriteTxnMarkersRequest,
        WriteTxnMarkersResponse,
    )
    from headrace_broker.protocol.types import NodeId
    from headrace_broker.server.clock import Clock
    from headrace_broker.server.config.broker_config import BrokerConfig
    from headrace_broker.server.peers.peers import PeerConnections
    from headrace_broker.server.quorum.producer_ids import ProducerIds


class Node(Protocol):
    """The parts of the node that the coordinator is built from."""

    config: BrokerConfig
    clock: Clock
    peers: PeerConnections
    producer_ids: ProducerIds

    @property
    def metadata(self) -> MetadataImage:
        """The latest metadata image."""


def compose_coordinator(
    node: Node,
    write_here: Callable[[WriteTxnMarkersRequest], Awaitable[WriteTxnMarkersResponse]],
) -> TransactionCoordinator:
    """Return the node's coordinator; `write_here` writes markers for this broker's partitions."""
    timeout_ms = node.config.values["replica.socket.timeout.ms"]

    async def send_markers(
        node_id: NodeId, request: WriteTxnMarkersRequest
    ) -> WriteTxnMarkersResponse:
        if node_id == node.config.node_id:
            return await write_here(request)
        response: WriteTxnMarkersResponse = await node.peers.send(
            node_id, request, timeout_ms=timeout_ms
        )
        return response

    return TransactionCoordinator(
        transaction_config(node.config.values),
        node.clock,
        image=lambda: node.metadata,
        next_producer_id=node.producer_ids.next_id,
        send_markers=send_markers,
    )
