"""BeginQuorumEpoch: a new leader of the metadata quorum says so to the voters (KIP-595).

Versions: 0 · 1 directory ids, the leader's endpoints, flexible (KIP-853).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import ApiKey

if TYPE_CHECKING:
    from headrace_broker.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest
    from headrace_broker.server.api.services import WithRaft
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.BEGIN_QUORUM_EPOCH


def handle(broker: WithRaft, context: RequestContext, request: BeginQuorumEpochRequest) -> Any:
    """Hand it to this node's replica of the quorum, which answers."""
    return broker.raft.request(request, context.api_version)
