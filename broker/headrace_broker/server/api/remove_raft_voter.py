"""RemoveRaftVoter: makes a voter of the metadata quorum an observer (KIP-853).

Versions: 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import ApiKey

if TYPE_CHECKING:
    from headrace_broker.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
    from headrace_broker.server.api.services import WithRaft
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.REMOVE_RAFT_VOTER
FORWARDED = True


def handle(broker: WithRaft, context: RequestContext, request: RemoveRaftVoterRequest) -> Any:
    """Hand it to this node's replica of the quorum, which answers."""
    return broker.raft.request(request, context.api_version)
