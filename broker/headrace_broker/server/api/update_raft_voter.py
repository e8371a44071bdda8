"""UpdateRaftVoter: a voter tells its endpoints and versions (KIP-853).

Versions: 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import ApiKey

if TYPE_CHECKING:
    from headrace_broker.protocol.messages.update_raft_voter import UpdateRaftVoterRequest
    from headrace_broker.server.api.services import WithRaft
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.UPDATE_RAFT_VOTER


def handle(broker: WithRaft, context: RequestContext, request: UpdateRaftVoterRequest) -> Any:
    """Hand it to this node's replica of the quorum, which answers."""
    return broker.raft.request(request, context.api_version)
