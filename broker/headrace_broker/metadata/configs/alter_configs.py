"""Decides changes of configuration: incremental ones (KIP-339) and the older whole replacement.

Each resource of a request succeeds or fails by itself. Only changed values become records, so
applying the same configuration again writes nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, TypeVar

from headrace_broker.metadata.configs.broker_rules import BrokerRules
from headrace_broker.metadata.configs.config_effects import settled_partitions
from headrace_broker.metadata.configs.group_config import GroupRules
from headrace_broker.metadata.decision import MetadataDecision
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.layers import broker_layers
from headrace_broker.metadata.names import validate_topic_name
from headrace_broker.metadata.records import ConfigRecord, MetadataRecord
from headrace_broker.metadata.settings.broker_settings import BrokerSettings
from headrace_broker.metadata.settings.resources import (
    ConfigResource,
    ConfigResourceType,
    ConfigSource,
    ConfigType,
)
from headrace_broker.metadata.settings.setting_types import format_value, split_list
from headrace_broker.metadata.settings.topic_config import (
    ConfigLayer,
    topic_candidates,
    validate_topic_config,
)
from headrace_broker.metadata.settings.topic_settings import TOPIC_SETTINGS
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages import alter_configs, incremental_alter_configs
from headrace_broker.protocol.types import NodeId

OutcomeT = TypeVar("OutcomeT")


class _Resource(Protocol):
    resource_type: int
    resource_name: str


class ConfigOperation(IntEnum):
    """What an incremental request does to one setting (`AlterConfigOp.OpType`)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """One operation on one setting."""

    name: str
    operation: int
    value: str | None


def decide_incremental_alter_configs(
    image: MetadataImage,
    request: incremental_alter_configs.IncrementalAlterConfigsRequest,
    settings: BrokerSettings,
) -> MetadataDecision[incremental_alter_configs.IncrementalAlterConfigsResponse]:
    """Decide the settings that the request sets, deletes, appends to or subtracts from."""
    asked = [
        (
            ConfigResource(resource.resource_type, resource.resource_name),
            [
                ConfigChange(name=entry.name, operation=entry.config_operation, value=entry.value)
                for entry in resource.configs
            ],
        )
        for resource in request.resources
    ]
    records, errors = _decide_all(asked, lambda *change: _incremental(image, settings, *change))
    outcomes = resource_outcomes(
        request.resources, errors, incremental_alter_configs.AlterConfigsResourceResponse
    )
    return MetadataDecision(
        records=[] if request.validate_only else settled_partitions(image, records, settings),
        response=incremental_alter_configs.IncrementalAlterConfigsResponse(responses=outcomes),
    )


def decide_alter_configs(
    image: MetadataImage, request: alter_configs.AlterConfigsRequest, settings: BrokerSettings
) -> MetadataDecision[alter_configs.AlterConfigsResponse]:
    """Decide whole configurations: a setting that the request does not name is deleted."""
    asked = [
        (
            ConfigResource(resource.resource_type, resource.resource_name),
            [
                ConfigChange(name=entry.name, operation=ConfigOperation.SET, value=entry.value)
                for entry in resource.configs
            ],
        )
        for resource in request.resources
    ]
    records, errors = _decide_all(asked, lambda *change: _replace(image, settings, *change))
    outcomes = resource_outcomes(
        request.resources, errors, alter_configs.AlterConfigsResourceResponse
    )
    return MetadataDecision(
        records=[] if request.validate_only else settled_partitions(image, records, settings),
        response=alter_configs.AlterConfigsResponse(responses=outcomes),
    )


def resource_outcomes(
    resources: Sequence[_Resource], errors: Sequence[ApiError | None], make: Callable[..., OutcomeT]
) -> list[OutcomeT]:
    """Return the outcome of each resource of a request, in the response's type."""
    return [
        make(
            error_code=ErrorCode.NONE if error is None else error.code,
            error_message=None if error is None else error.message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource, error in zip(resources, errors, strict=True)
    ]


def _decide_all(
    asked: Sequence[tuple[ConfigResource, Sequence[ConfigChange]]],
    decide: Callable[[ConfigResource, Sequence[ConfigChange]], list[MetadataRecord]],
) -> tuple[list[MetadataRecord], list[ApiError | None]]:
    times = Counter(resource for resource, _ in asked)
    records: list[MetadataRecord] = []
    errors: list[ApiError | None] = []
    for resource, changes in asked:
        try:
            _check_named_once(times[resource], changes)
            records += decide(resource, changes)
        except ApiError as error:
            errors.append(error)
        else:
            errors.append(None)
    return records, errors


def _check_named_once(times: int, changes: Iterable[ConfigChange]) -> None:
    if times > 1:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
    names = Counter(change.name for change in changes)
    twice = sorted(name for name, count in names.items() if count > 1)
    if twice:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Error due to duplicate config keys: {', '.join(twice)}"
        )


def _incremental(
    image: MetadataImage,
    settings: BrokerSettings,
    resource: ConfigResource,
    changes: Sequence[ConfigChange],
) -> list[MetadataRecord]:
    rules = _rules(image, settings, resource)
    before = image.config(resource)
    after = dict(before)
    for change in changes:
        # As in Kafka, anything may be deleted: what is not there is gone already.
        is_gone = change.operation == ConfigOperation.DELETE
        rules.check_name(change.name, is_set=is_gone or change.name in before)
        value = _applied(rules, after.get(change.name), change)
        if value is None:
            after.pop(change.name, None)
        else:
            after[change.name] = value
    return _changed(resource, before, after, rules)


def _replace(
    image: MetadataImage,
    settings: BrokerSettings,
    resource: ConfigResource,
    changes: Sequence[ConfigChange],
) -> list[MetadataRecord]:
    rules = _rules(image, settings, resource)
    after: dict[str, str] = {}
    for change in changes:
        rules.check_name(change.name, is_set=False)
        value = _applied(rules, None, change)
        if value is not None:
            after[change.name] = value
    return _changed(resource, image.config(resource), after, rules)


def _applied(rules: "_Rules", current: str | None, change: ConfigChange) -> str | None:
    """Return the setting's text after `change`, None if it returns to its default."""
    if change.operation == ConfigOperation.DELETE:
        return None
    if change.operation not in set(ConfigOperation):
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Unknown operation {change.operation} on {change.name}"
        )
    if change.value is None:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Null value not supported for config {change.name}"
        )
    operation = ConfigOperation(change.operation)
    if operation is ConfigOperation.SET:
        return change.value
    if not rules.is_list(change.name):
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"Can't {operation.name} to key {change.name} because its type is not LIST.",
        )
    items = split_list(rules.inherited(change.name) if current is None else current)
    named = split_list(change.value)
    if operation is ConfigOperation.APPEND:
        items += [item for item in named if item not in items]
    else:
        items = [item for item in items if item not in named]
    return ",".join(items)


def _changed(
    resource: ConfigResource, before: Mapping[str, str], after: Mapping[str, str], rules: "_Rules"
) -> list[MetadataRecord]:
    rules.validate(after)
    return [
        ConfigRecord(
            resource_type=resource.type,
            resource_name=resource.name,
            name=name,
            value=after.get(name),
        )
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]


class _TopicRules:
    """The rules for a topic's configuration."""

    def __init__(self, layers: Sequence[ConfigLayer]) -> None:
        self._layers = layers

    def check_name(self, name: str, *, is_set: bool) -> None:
        """Raise ApiError(INVALID_CONFIG) for a setting that topics do not have."""
        if name not in TOPIC_SETTINGS and not is_set:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")

    def is_list(self, name: str) -> bool:
        """Return whether the setting's value is a list."""
        return TOPIC_SETTINGS[name].type is ConfigType.LIST

    def inherited(self, name: str) -> str:
        """Return the value if the topic does not set it."""
        value = topic_candidates(TOPIC_SETTINGS[name], {}, self._layers)[0].value
        return format_value(value) or ""

    def validate(self, texts: Mapping[str, str]) -> None:
        """Raise ApiError(INVALID_CONFIG) unless the whole configuration is legal."""
        validate_topic_config(texts, self._layers)


_Rules = _TopicRules | BrokerRules | GroupRules


def _rules(image: MetadataImage, settings: BrokerSettings, resource: ConfigResource) -> _Rules:
    """Return the rules for `resource`; raises ApiError if it does not exist."""
    if resource.type == ConfigResourceType.TOPIC:
        if not resource.name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        validate_topic_name(resource.name)
        if resource.name not in image.topics:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{resource.name}' does not exist."
            )
        return _TopicRules(broker_layers(image, settings.node_id, settings.static))
    if resource.type == ConfigResourceType.GROUP:
        check_group_name(resource)
        return GroupRules(settings.values)
    if resource.type != ConfigResourceType.BROKER:
        raise unsupported_resource(resource)
    if resource.name == "":
        layers = broker_layers(image, settings.node_id, settings.static)
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        return BrokerRules(image, source, layers[2:], settings)
    node_id = broker_of(resource)
    if node_id not in image.brokers:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"No broker with id {node_id} is registered.")
    layers = broker_layers(image, node_id, settings.static)
    return BrokerRules(image, ConfigSource.DYNAMIC_BROKER_CONFIG, layers[1:], settings)


def check_group_name(resource: ConfigResource) -> None:
    """Raise ApiError(INVALID_REQUEST) for a group without a name."""
    if not resource.name:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")


def broker_of(resource: ConfigResource) -> NodeId:
    """Return the id in a broker resource's name; raises ApiError(INVALID_REQUEST)."""
    if not (resource.name.isascii() and resource.name.isdigit()):
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Unable to parse broker name '{resource.name}' as a base 10 number.",
        )
    return NodeId(int(resource.name))


def unsupported_resource(resource: ConfigResource) -> ApiError:
    """Return the error for a kind of resource without configuration here."""
    try:
        kind = ConfigResourceType(resource.type).name
    except ValueError:
        kind = str(resource.type)
    return ApiError(
        ErrorCode.INVALID_REQUEST,
        f"Resources of type {kind} have no configuration here, only TOPIC, BROKER and GROUP have",
    )
