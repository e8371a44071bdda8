"""DescribeQuorum: the leader, the voters and the observers of the metadata quorum (KIP-595).

Versions: 0 · 1 times of the last fetch (KIP-836) · 2 directory ids and endpoints (KIP-853).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.apis import ApiKey

if TYPE_CHECKING:
    from headrace_broker.protocol.messages.describe_quorum import DescribeQuorumRequest
    from headrace_broker.server.api.services import WithRaft
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.DESCRIBE_QUORUM
FORWARDED = True


def handle(broker: WithRaft, context: RequestContext, request: DescribeQuorumRequest) -> Any:
    """Hand it to this node's replica of the quorum, which answers."""
    return broker.raft.request(request, context.api_version)
