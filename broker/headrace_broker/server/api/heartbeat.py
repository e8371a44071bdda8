"""Heartbeat: a member lives, and hears whether it must join again.

Versions: 0 · 1 throttle time · 2 as 1 · 3 static members (KIP-345) · 4 flexible.
"""

from typing import TYPE_CHECKING

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from headrace_broker.server.api.services import WithGroups
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.HEARTBEAT


def handle(
    broker: "WithGroups", context: "RequestContext", request: HeartbeatRequest
) -> HeartbeatResponse:
    """Answer at once."""
    try:
        return broker.groups.heartbeat(request, context)
    except ApiError as error:
        if error.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # As in Kafka: the member is kept, and has nothing to do while its group loads.
            return HeartbeatResponse()
        return HeartbeatResponse(error_code=error.code)
