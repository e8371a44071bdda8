"""ListConfigResources: who has a configuration (KIP-1142; as ListClientMetricsResources, KIP-714).

Versions: 0 client metrics only, of which there are none · 1 types, all where none is named.
"""

from typing import TYPE_CHECKING, Final

from headrace_broker.metadata.settings.resources import ConfigResourceType
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from headrace_broker.server.api.services import WithMetadata
    from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.LIST_CONFIG_RESOURCES

_TYPES: Final = (
    ConfigResourceType.TOPIC,
    ConfigResourceType.BROKER,
    ConfigResourceType.BROKER_LOGGER,
    ConfigResourceType.CLIENT_METRICS,
    ConfigResourceType.GROUP,
)


def handle(
    broker: "WithMetadata", context: "RequestContext", request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """List resources by type; a type that Kafka cannot list is UNSUPPORTED_VERSION."""
    asked = set(request.resource_types)
    if context.api_version == 0:
        asked = {ConfigResourceType.CLIENT_METRICS}
    if not asked <= set(_TYPES):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    image = broker.metadata
    nodes = [str(node_id) for node_id in sorted(image.brokers)]
    names: dict[ConfigResourceType, list[str]] = {
        ConfigResourceType.TOPIC: sorted(image.topics),
        ConfigResourceType.BROKER: nodes,
        ConfigResourceType.BROKER_LOGGER: nodes,
        ConfigResourceType.CLIENT_METRICS: [],
        ConfigResourceType.GROUP: sorted(
            name for kind, name in image.configs if kind == ConfigResourceType.GROUP
        ),
    }
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in _TYPES
            if not asked or kind in asked
            for name in names[kind]
        ]
    )
