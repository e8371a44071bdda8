"""DescribeConfigs: settings of topics and brokers, with their sources.

Versions: 1 synonyms and sources (KIP-226) · 2 as 1 · 3 types and documentation (KIP-569) ·
4 flexible.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from headrace_broker.metadata.configs.config_description import ConfigDescriber, describe_configs
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.describe_configs import DescribeConfigsResponse
from headrace_broker.server.api.services import WithConfig, WithMetadata
from headrace_broker.server.config.config_view import broker_settings

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from headrace_broker.protocol.messages.describe_configs import (
        DescribeConfigsRequest,
    )
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.DESCRIBE_CONFIGS


#: So many topics with settings of their own take some 20 ms.
_AT_A_TIME: Final = 100


class Node(WithConfig, WithMetadata, Protocol):
    """What this handler needs from the node."""


def handle(
    broker: Node, context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse | Awaitable[DescribeConfigsResponse]:
    """Describe each resource as the latest image has it."""
    del context
    if len(request.resources) > _AT_A_TIME:
        return _describe_in_turns(broker, request)
    return describe_configs(broker.metadata, request, broker_settings(broker.config))


async def _describe_in_turns(
    broker: Node, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Serve others in between: tools ask for all topics of a cluster at once."""
    describer = ConfigDescriber(broker.metadata, request, broker_settings(broker.config))
    response = DescribeConfigsResponse()
    for start in range(0, len(request.resources), _AT_A_TIME):
        part = request.resources[start : start + _AT_A_TIME]
        response.results += [describer.describe(asked) for asked in part]
        await asyncio.sleep(0)
    return response
