"""IncrementalAlterConfigs: sets, deletes, appends to and subtracts from settings.

Versions: 0 (KIP-339) · 1 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_broker.metadata.configs import decide_incremental_alter_configs
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from headrace_broker.server.config_view import broker_settings

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker
    from headrace_broker.server.context import RequestContext

API_KEY = ApiKey.INCREMENTAL_ALTER_CONFIGS
FORWARDED = True


async def handle(
    broker: Broker, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Change what may be changed; each resource has its own outcome."""
    del context
    settings = broker_settings(broker.config)
    try:
        return await broker.controller.submit(
            lambda image: decide_incremental_alter_configs(image, request, settings),
            is_confirmed=not request.validate_only,
        )
    except ApiError as error:
        return IncrementalAlterConfigsResponse(
            responses=[
                AlterConfigsResourceResponse(
                    error_code=error.code,
                    error_message=error.message,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
                for resource in request.resources
            ]
        )
