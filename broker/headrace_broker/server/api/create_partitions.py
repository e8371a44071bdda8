"""CreatePartitions: lets topics grow.

Versions: 0 · 1 as 0 · 2 flexible · 3 THROTTLING_QUOTA_EXCEEDED (KIP-599).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_broker.metadata.topic_growth import decide_create_partitions
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)

if TYPE_CHECKING:
    from headrace_broker.server.api.services import WithController
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.CREATE_PARTITIONS
FORWARDED = True


async def handle(
    broker: WithController, context: RequestContext, request: CreatePartitionsRequest
) -> CreatePartitionsResponse:
    """Add partitions; each topic has its own outcome."""
    del context
    controller = broker.controller
    try:
        return await controller.submit(
            lambda image: decide_create_partitions(
                image, request, controller.policy, controller.rng
            ),
            is_confirmed=not request.validate_only,
        )
    except ApiError as error:
        return CreatePartitionsResponse(
            results=[
                CreatePartitionsTopicResult(
                    name=topic.name, error_code=error.code, error_message=error.message
                )
                for topic in request.topics
            ]
        )
