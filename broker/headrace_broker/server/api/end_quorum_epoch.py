"""EndQuorumEpoch: a leader that stops names whom it would see elected (KIP-595).

Versions: 0 · 1 directory ids, the leader's endpoints, flexible (KIP-853).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import ApiKey

if TYPE_CHECKING:
    from headrace_broker.protocol.messages.end_quorum_epoch import EndQuorumEpochRequest
    from headrace_broker.server.api.services import WithRaft
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.END_QUORUM_EPOCH


def handle(broker: WithRaft, context: RequestContext, request: EndQuorumEpochRequest) -> Any:
    """Hand it to this node's replica of the quorum, which answers."""
    return broker.raft.request(request, context.api_version)
