"""AddRaftVoter: makes an observer a voter of the metadata quorum (KIP-853).

Versions: 0 · 1 may answer before the commit (KIP-1186).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import ApiKey

if TYPE_CHECKING:
    from headrace_broker.protocol.messages.add_raft_voter import AddRaftVoterRequest
    from headrace_broker.server.api.services import WithRaft
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.ADD_RAFT_VOTER
FORWARDED = True


def handle(broker: WithRaft, context: RequestContext, request: AddRaftVoterRequest) -> Any:
    """Hand it to this node's replica of the quorum, which answers."""
    return broker.raft.request(request, context.api_version)
