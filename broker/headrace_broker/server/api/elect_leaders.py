"""ElectLeaders: elect the preferred leaders, or any replica where there is no leader.

Versions: 0 preferred leaders only · 1 unclean elections (KIP-460) · 2 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_broker.metadata.elections import decide_elect_leaders
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

if TYPE_CHECKING:
    from headrace_broker.server.api.services import WithController
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.ELECT_LEADERS
FORWARDED = True


async def handle(
    broker: WithController, context: RequestContext, request: ElectLeadersRequest
) -> ElectLeadersResponse:
    """Elect leaders; each partition has its own outcome."""
    controller = broker.controller
    try:
        return await controller.submit(
            lambda image: decide_elect_leaders(image, request, controller.policy),
            is_confirmed=True,
        )
    except ApiError as error:
        return _failure(request, error, context.api_version)


def _failure(request: ElectLeadersRequest, error: ApiError, version: int) -> ElectLeadersResponse:
    """Return the error for every partition: version 0 has no top-level error."""
    return ElectLeadersResponse(
        error_code=error.code if version > 0 else ErrorCode.NONE,
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    PartitionResult(
                        partition_id=index, error_code=error.code, error_message=error.message
                    )
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or []
        ],
    )
