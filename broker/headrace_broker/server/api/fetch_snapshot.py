"""FetchSnapshot: reads a piece of a snapshot of the metadata (KIP-630).

Versions: 0 · 1 directory id of the replica (KIP-853).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import ApiKey

if TYPE_CHECKING:
    from headrace_broker.protocol.messages.fetch_snapshot import FetchSnapshotRequest
    from headrace_broker.server.api.services import WithRaft
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.FETCH_SNAPSHOT


def handle(broker: WithRaft, context: RequestContext, request: FetchSnapshotRequest) -> Any:
    """Hand it to this node's replica of the quorum, which answers."""
    return broker.raft.request(request, context.api_version)
