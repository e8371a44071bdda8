"""DescribeConfigs: settings of topics and brokers, with their sources.

Versions: 1 synonyms and sources (KIP-226) · 2 as 1 · 3 types and documentation (KIP-569) ·
4 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace_broker.metadata.configs.config_description import describe_configs
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.server.api.services import WithConfig, WithMetadata
from headrace_broker.server.config.config_view import broker_settings

if TYPE_CHECKING:
    from headrace_broker.protocol.messages.describe_configs import (
        DescribeConfigsRequest,
        DescribeConfigsResponse,
    )
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.DESCRIBE_CONFIGS


class Node(WithConfig, WithMetadata, Protocol):
    """What this handler needs from the node."""


def handle(
    broker: Node, context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Describe each resource as the latest image has it."""
    del context
    return describe_configs(broker.metadata, request, broker_settings(broker.config))
