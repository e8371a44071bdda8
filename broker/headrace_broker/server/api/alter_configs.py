"""AlterConfigs: replaces the whole configuration of a resource.

Deprecated in favour of IncrementalAlterConfigs (KIP-339); older clients still send it.

Versions: 0 · 1 throttle time · 2 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace_broker.metadata.configs.alter_configs import decide_alter_configs, resource_outcomes
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from headrace_broker.server.api.services import WithConfig, WithController
from headrace_broker.server.config.config_view import broker_settings

if TYPE_CHECKING:
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.ALTER_CONFIGS
FORWARDED = True


class Node(WithConfig, WithController, Protocol):
    """What this handler needs from the node."""


async def handle(
    broker: Node, context: RequestContext, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    """Change what may be changed; each resource has its own outcome."""
    del context
    settings = broker_settings(broker.config)
    try:
        return await broker.controller.submit(
            lambda image: decide_alter_configs(image, request, settings),
            is_confirmed=not request.validate_only,
        )
    except ApiError as error:
        refusals = [error] * len(request.resources)
        return AlterConfigsResponse(
            responses=resource_outcomes(request.resources, refusals, AlterConfigsResourceResponse)
        )
