"""Checks settings of topics and brokers by name and value, before a broker would refuse them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_operator.resources.broker_settings import BROKER_SETTINGS
from headrace_operator.resources.topic_settings import TOPIC_SETTINGS, SettingType
from headrace_operator.validation.problems import SchemaProblem, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def check_topic_settings(config: Mapping[str, Any]) -> Iterator[SchemaProblem]:
    """Yield topic settings that Kafka does not know, and values that it would refuse."""
    yield from _check(config, TOPIC_SETTINGS, "topic")


def check_broker_settings(config: Mapping[str, Any]) -> Iterator[SchemaProblem]:
    """Yield the settings with which a broker would not start."""
    yield from _check(config, BROKER_SETTINGS, "broker")


def _check(
    config: Mapping[str, Any], known: Mapping[str, SettingType | tuple[str, ...]], owner: str
) -> Iterator[SchemaProblem]:
    for key, value in config.items():
        path = ("spec", "config", key)
        setting = known.get(key)
        if setting is None:
            hint = nearest(key, known) or f"see Kafka's {owner} configs for the names"
            yield SchemaProblem(path=path, reason=f"unknown {owner} setting; {hint}")
        elif problem := setting_problem(setting, str(value)):
            yield SchemaProblem(path=path, reason=problem)


def setting_problem(setting: SettingType | tuple[str, ...], text: str) -> str:
    """Return what is wrong with a value, or the empty string."""
    if isinstance(setting, tuple):
        # cleanup.policy takes several words, or none (everything is kept); the others take one.
        words = [part.strip() for part in text.split(",") if part.strip()]
        unknown = [word for word in words if word not in setting]
        if unknown:
            return f"{text!r} is not one of {', '.join(setting)}"
        return ""
    if setting is SettingType.BOOLEAN:
        return "" if text.lower() in ("true", "false") else f'{text!r} is not "true" or "false"'
    if setting is SettingType.TEXT:
        return ""
    try:
        float(text) if setting is SettingType.FRACTION else int(text)
    except ValueError:
        kind = "a number" if setting is SettingType.FRACTION else "an integer"
        return f"{text!r} is not {kind}; Kafka's settings have no units"
    return ""
