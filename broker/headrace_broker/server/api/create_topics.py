"""CreateTopics: makes topics; they can be used when the answer comes.

Versions: 2 throttle time · 3 as 2 · 4 partitions and replication factor -1 mean the broker's
defaults (KIP-464) · 5 flexible, answers the configuration (KIP-525) · 6 THROTTLING_QUOTA_EXCEEDED
(KIP-599) · 7 answers the topic's id (KIP-516).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_broker.metadata.topics import decide_create_topics
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from headrace_broker.server.api.services import WithController
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.CREATE_TOPICS
FORWARDED = True


async def handle(
    broker: WithController, context: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    """Create what may be created; each topic has its own outcome."""
    del context
    controller = broker.controller
    try:
        return await controller.submit(
            lambda image: decide_create_topics(image, request, controller.policy, controller.rng),
            is_confirmed=not request.validate_only,
        )
    except ApiError as error:
        return CreateTopicsResponse(
            topics=[
                CreatableTopicResult(
                    name=topic.name, error_code=error.code, error_message=error.message
                )
                for topic in request.topics
            ]
        )
