"""Describes configuration: every setting with its value, its source, and its documentation.

Reads only. A value under a sensitive name is never returned, whatever its source.
"""

from collections.abc import Callable, Mapping, Sequence

from headrace_broker.metadata.configs.alter_configs import (
    broker_of,
    check_group_name,
    unsupported_resource,
)
from headrace_broker.metadata.configs.group_config import GROUP_SETTINGS, group_resource
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.layers import broker_layers
from headrace_broker.metadata.names import validate_topic_name
from headrace_broker.metadata.settings.broker_settings import (
    DYNAMIC_BROKER_SETTINGS,
    BrokerSetting,
    BrokerSettings,
    is_sensitive,
    kept_setting,
)
from headrace_broker.metadata.settings.resources import (
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
    broker_resource,
    topic_resource,
)
from headrace_broker.metadata.settings.setting_types import format_value
from headrace_broker.metadata.settings.topic_config import ConfigLayer, topic_candidates
from headrace_broker.metadata.settings.topic_settings import TOPIC_SETTINGS
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

_SameTopics = tuple[frozenset[tuple[str, str]], frozenset[str]]
"""What decides how a topic is described: its own settings, and the names that were asked for."""


def describe_configs(
    image: MetadataImage, request: DescribeConfigsRequest, settings: BrokerSettings
) -> DescribeConfigsResponse:
    """Answer a DescribeConfigs request; each resource succeeds or fails by itself."""
    describer = ConfigDescriber(image, request, settings)
    return DescribeConfigsResponse(results=[describer.describe(each) for each in request.resources])


class ConfigDescriber:
    """Describes the resources of one request, one after the other, as one image has them.

    Tools ask for all topics of a cluster at once, and most topics have the same settings of their
    own: what describes them is made once and shared.
    """

    def __init__(
        self, image: MetadataImage, request: DescribeConfigsRequest, settings: BrokerSettings
    ) -> None:
        self._image = image
        self._request = request
        self._settings = settings
        self._topics: dict[_SameTopics, list[DescribeConfigsResourceResult]] = {}

    def describe(self, asked: DescribeConfigsResource) -> DescribeConfigsResult:
        """Return the description of a resource, or its error."""
        result = DescribeConfigsResult(
            error_message="",  # not null, as in Kafka
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
        )
        try:
            result.configs = self._describe(asked)
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
        return result

    def _describe(self, asked: DescribeConfigsResource) -> list[DescribeConfigsResourceResult]:
        if asked.resource_type != ConfigResourceType.TOPIC:
            return self._trimmed(_describe(self._image, asked, self._settings))
        overrides = _overrides(self._image, asked.resource_name)
        same = frozenset(overrides.items()), frozenset(asked.configuration_keys or ())
        described = self._topics.get(same)
        if described is None:
            found = _describe_topic(self._image, overrides, self._settings, _wanted(asked))
            described = self._topics[same] = self._trimmed(found)
        return described

    def _trimmed(
        self, described: list[DescribeConfigsResourceResult]
    ) -> list[DescribeConfigsResourceResult]:
        return [_trim(entry, self._request) for entry in described]


def _trim(
    entry: DescribeConfigsResourceResult, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
    """Remove what the request did not ask for."""
    if not request.include_synonyms:
        entry.synonyms = []
    if not request.include_documentation:
        entry.documentation = None
    return entry


def _describe(
    image: MetadataImage, asked: DescribeConfigsResource, settings: BrokerSettings
) -> list[DescribeConfigsResourceResult]:
    resource = ConfigResource(asked.resource_type, asked.resource_name)
    wanted = _wanted(asked)
    if resource.type == ConfigResourceType.GROUP:
        check_group_name(resource)
        return _describe_group(image, resource.name, settings, wanted)
    if resource.type != ConfigResourceType.BROKER:
        raise unsupported_resource(resource)
    if resource.name == "":
        return _describe_default_broker(image, settings, wanted)
    if broker_of(resource) != settings.node_id:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {settings.node_id} or empty string, but received "
            f"{resource.name}",
        )
    layers = broker_layers(image, settings.node_id, settings.static)
    known = settings.all()
    kept = {name for layer in layers for name in layer.texts} - known.keys()
    return [
        _describe_broker_setting(setting, layers)
        for name, setting in (known | {name: kept_setting(name) for name in sorted(kept)}).items()
        if wanted(name)
    ]


def _wanted(asked: DescribeConfigsResource) -> Callable[[str], bool]:
    # No keys mean all of them; so does an empty list, as in Kafka's ConfigHelper.
    keys = asked.configuration_keys
    return set(keys).__contains__ if keys else lambda _: True


def _overrides(image: MetadataImage, topic: str) -> Mapping[str, str]:
    """Return a topic's own settings. Raises ApiError where there is none."""
    validate_topic_name(topic)
    if topic not in image.topics:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic}' does not exist.")
    return image.config(topic_resource(topic))


def _describe_topic(
    image: MetadataImage,
    overrides: Mapping[str, str],
    settings: BrokerSettings,
    wanted: Callable[[str], bool],
) -> list[DescribeConfigsResourceResult]:
    layers = broker_layers(image, settings.node_id, settings.static)
    described = []
    for name, setting in TOPIC_SETTINGS.items():
        if not wanted(name):
            continue
        candidates = topic_candidates(setting, overrides, layers)
        described.append(
            DescribeConfigsResourceResult(
                name=name,
                value=format_value(candidates[0].value),
                config_source=candidates[0].source,
                synonyms=[
                    DescribeConfigsSynonym(
                        name=candidate.name,
                        value=format_value(candidate.own_value),
                        source=candidate.source,
                    )
                    for candidate in candidates
                ],
                config_type=setting.type,
                documentation=setting.doc,
            )
        )
    return described


def _describe_group(
    image: MetadataImage, group_id: str, settings: BrokerSettings, wanted: Callable[[str], bool]
) -> list[DescribeConfigsResourceResult]:
    """Describe a group, which need not exist, as in Kafka."""
    texts = image.config(group_resource(group_id))
    described = []
    for name, setting in GROUP_SETTINGS.items():
        if not wanted(name):
            continue
        synonym = setting.synonym or name
        default = format_value(setting.default_of(settings.values))
        is_static = synonym in settings.static
        found = [
            DescribeConfigsSynonym(
                name=synonym,
                value=default,
                source=ConfigSource.STATIC_BROKER_CONFIG
                if is_static
                else ConfigSource.DEFAULT_CONFIG,
            )
        ]
        if name in texts:
            source = ConfigSource.GROUP_CONFIG
            found.insert(0, DescribeConfigsSynonym(name=name, value=texts[name], source=source))
        described.append(
            DescribeConfigsResourceResult(
                name=name,
                value=found[0].value,
                config_source=found[0].source,
                synonyms=found,
                config_type=setting.type,
                documentation=setting.doc,
            )
        )
    return described


def _describe_default_broker(
    image: MetadataImage, settings: BrokerSettings, wanted: Callable[[str], bool]
) -> list[DescribeConfigsResourceResult]:
    texts = image.config(broker_resource(None))
    layer = ConfigLayer(source=ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, texts=texts)
    known = settings.all()
    return [
        _describe_broker_setting(known.get(name) or kept_setting(name), [layer])
        for name in texts
        if wanted(name)
    ]


def _describe_broker_setting(
    setting: BrokerSetting, layers: Sequence[ConfigLayer]
) -> DescribeConfigsResourceResult:
    hidden = is_sensitive(setting.name)
    is_dynamic = any(
        setting.name in layer.texts
        for layer in layers
        if layer.source is not ConfigSource.STATIC_BROKER_CONFIG
    )
    is_fixed = setting.name not in DYNAMIC_BROKER_SETTINGS and not is_dynamic
    found: list[tuple[str | None, ConfigSource]] = [
        (layer.texts[setting.name], layer.source) for layer in layers if setting.name in layer.texts
    ]
    default = format_value(setting.default)
    if default is not None or not found:
        found.append((default, ConfigSource.DEFAULT_CONFIG))
    return DescribeConfigsResourceResult(
        name=setting.name,
        value=None if hidden else found[0][0],
        read_only=is_fixed,
        config_source=found[0][1],
        is_sensitive=hidden,
        synonyms=[
            DescribeConfigsSynonym(
                name=setting.name, value=None if hidden else value, source=source
            )
            for value, source in found
        ],
        config_type=setting.type,
        documentation=setting.doc,
    )
