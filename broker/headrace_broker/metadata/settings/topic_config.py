"""A topic's effective configuration, and its validation.

A topic's effective value is the first of: its own, the broker's dynamic one, the cluster's dynamic
default, the broker's file, the default in `topic_settings` (the order of Kafka's ConfigHelper).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace_broker.metadata.settings.resources import ConfigSource, ConfigType
from headrace_broker.metadata.settings.setting_types import Synonym, parse_value
from headrace_broker.metadata.settings.topic_settings import (
    BROKER_SYNONYMS,
    TOPIC_SETTINGS,
    TopicSetting,
)
from headrace_broker.protocol.errors import ApiError, ErrorCode

#: The maximum length of one value: every broker keeps all configuration in memory.
VALUE_LENGTH_MAX = 32767


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigLayer:
    """One source of broker settings: their texts by name."""

    source: ConfigSource
    texts: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigCandidate:
    """One value that a setting would have if no stronger one were set.

    `value` is in the topic setting's unit, `own_value` in that of the setting called `name`.
    """

    name: str
    value: Any
    own_value: Any
    source: ConfigSource


def broker_topic_settings() -> Mapping[str, Callable[[str], Any]]:
    """Return the broker settings that give topics their defaults, each with its parser.

    A parser returns the typed value in the broker setting's own unit, or raises ValueError.
    """
    return {
        name: partial(parse_broker_text, setting, synonym)
        for name, (setting, synonym) in BROKER_SYNONYMS.items()
    }


def parse_broker_text(setting: TopicSetting, synonym: Synonym, text: str) -> Any:
    """Return a broker setting's typed value in its own unit; raise ValueError."""
    value = setting.parse(text) if synonym.factor == 1 else parse_value(text, ConfigType.INT)
    if setting.check is not None:
        setting.check.check(synonym.convert(value))
    return value


def topic_candidates(
    setting: TopicSetting, overrides: Mapping[str, str], layers: Sequence[ConfigLayer]
) -> list[ConfigCandidate]:
    """Return every value that `setting` has in any source, the effective one first."""
    found: list[ConfigCandidate] = []
    text = overrides.get(setting.name)
    if text is not None:
        value = setting.parse(text)
        source = ConfigSource.DYNAMIC_TOPIC_CONFIG
        found.append(
            ConfigCandidate(name=setting.name, value=value, own_value=value, source=source)
        )
    for synonym in setting.synonyms:
        for layer in layers:
            text = layer.texts.get(synonym.name)
            if text is not None:
                own = parse_broker_text(setting, synonym, text)
                found.append(
                    ConfigCandidate(
                        name=synonym.name,
                        value=synonym.convert(own),
                        own_value=own,
                        source=layer.source,
                    )
                )
    weakest = setting.synonyms[-1] if setting.synonyms else Synonym(name=setting.name)
    found.append(
        ConfigCandidate(
            name=weakest.name,
            value=setting.default,
            own_value=weakest.default_of(setting.default),
            source=ConfigSource.DEFAULT_CONFIG,
        )
    )
    return found


def effective_topic_config(
    overrides: Mapping[str, str], layers: Sequence[ConfigLayer]
) -> dict[str, Any]:
    """Return every topic setting's effective value, typed, by name."""
    return {
        name: topic_candidates(setting, overrides, layers)[0].value
        for name, setting in TOPIC_SETTINGS.items()
    }


def validate_topic_config(overrides: Mapping[str, str], layers: Sequence[ConfigLayer]) -> None:
    """Raise ApiError(INVALID_CONFIG) with the invalid setting and its accepted values."""
    for name, text in overrides.items():
        setting = TOPIC_SETTINGS.get(name)
        if setting is None:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        if len(text) > VALUE_LENGTH_MAX:
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"The value of {name} has {len(text)} characters, more than {VALUE_LENGTH_MAX}",
            )
        try:
            setting.parse(text)
        except ValueError as error:
            raise invalid_value(name, text, error) from error
    _cross_check(effective_topic_config(overrides, layers))


def invalid_value(name: str, text: str, why: Exception | str) -> ApiError:
    """Return the error for an invalid value of `name`, with Kafka's message."""
    return ApiError(
        ErrorCode.INVALID_CONFIG, f"Invalid value {text} for configuration {name}: {why}"
    )


def _cross_check(values: Mapping[str, Any]) -> None:
    shortest, longest = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    if shortest > longest:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"conflict topic config setting min.compaction.lag.ms ({shortest}) > "
            f"max.compaction.lag.ms ({longest})",
        )
    if values["remote.storage.enable"]:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            "remote.storage.enable: this broker has no tiered storage; leave it false",
        )
