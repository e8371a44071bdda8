"""Vote: a replica of the metadata quorum asks for a vote or a pre-vote (KIP-595, KIP-996).

Versions: 0 · 1 directory ids of voters (KIP-853) · 2 pre-vote (KIP-996).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import ApiKey

if TYPE_CHECKING:
    from headrace_broker.protocol.messages.vote import VoteRequest
    from headrace_broker.server.api.services import WithRaft
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.VOTE


def handle(broker: WithRaft, context: RequestContext, request: VoteRequest) -> Any:
    """Hand it to this node's replica of the quorum, which answers."""
    return broker.raft.request(request, context.api_version)
