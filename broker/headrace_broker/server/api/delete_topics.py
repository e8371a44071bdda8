"""DeleteTopics: removes topics with all their records.

Versions: 1 throttle time · 2, 3 as 1 · 4 flexible · 5 error message, THROTTLING_QUOTA_EXCEEDED
(KIP-599) · 6 by topic id too (KIP-516).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_broker.metadata.topics import decide_delete_topics
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

if TYPE_CHECKING:
    from headrace_broker.server.api.services import WithController
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.DELETE_TOPICS
FORWARDED = True


async def handle(
    broker: WithController, context: RequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    """Delete what may be deleted; each topic has its own outcome."""
    del context
    controller = broker.controller
    try:
        return await controller.submit(
            lambda image: decide_delete_topics(image, request, controller.policy),
            is_confirmed=True,
        )
    except ApiError as error:
        asked = request.topics or [DeleteTopicState(name=name) for name in request.topic_names]
        return DeleteTopicsResponse(
            responses=[
                DeletableTopicResult(
                    name=state.name,
                    topic_id=state.topic_id,
                    error_code=error.code,
                    error_message=error.message,
                )
                for state in asked
            ]
        )
