"""Checks settings of topics and brokers by name and value, before a broker would refuse them."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from headrace_operator.resources.broker_settings import BROKER_SETTINGS, OWNED_BROKER_SETTINGS
from headrace_operator.resources.ignored_settings import IGNORED_BROKER_SETTINGS
from headrace_operator.resources.setting_types import INT_MAX, LONG_MAX, Setting, SettingType
from headrace_operator.resources.topic_settings import TOPIC_SETTINGS
from headrace_operator.validation.problems import SchemaProblem, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: As in the broker. Not int() and float() alone: they take underscores and other scripts' digits.
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_FRACTION = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
#: As in the broker: to accept these without effect would be deceptive.
_SECURITY = ("authorizer.", "delegation.", "password.", "principal.", "sasl.", "security.", "ssl.")
#: What Kafka 4 has no longer, and what to write instead.
_FORMER = {
    "auto.include.jmx.reporter": "",
    "broker.id.generation.enable": "",
    "control.plane.listener.name": "",
    "inter.broker.protocol.version": "spec.features: metadata.version",
    "log.message.downconversion.enable": "",
    "log.message.format.version": "",
    "log.message.timestamp.difference.max.ms": (
        "log.message.timestamp.before.max.ms and log.message.timestamp.after.max.ms"
    ),
    "message.downconversion.enable": "",
    "message.format.version": "",
    "message.timestamp.difference.max.ms": (
        "message.timestamp.before.max.ms and message.timestamp.after.max.ms"
    ),
    "offsets.commit.required.acks": "",
    "reserved.broker.max.id": "",
}


def check_topic_settings(config: Mapping[str, Any]) -> Iterator[SchemaProblem]:
    """Yield topic settings that Kafka does not know, and values that a broker would refuse."""
    problems = list(_check(config, TOPIC_SETTINGS, "topic"))
    yield from problems
    if problems:
        return
    yield from _check_lags(config, "min.compaction.lag.ms", "max.compaction.lag.ms")
    name = "remote.storage.enable"
    if str(config.get(name, "")).strip().lower() == "true":
        reason = "brokers have no tiered storage; leave it false"
        yield SchemaProblem(path=("spec", "config", name), reason=reason)


def check_broker_settings(config: Mapping[str, Any]) -> Iterator[SchemaProblem]:
    """Yield the settings with which a broker would not start, or that it would not take live."""
    known = {key: value for key, value in config.items() if key not in IGNORED_BROKER_SETTINGS}
    problems = list(_check(known, BROKER_SETTINGS, "broker"))
    yield from problems
    if not problems:
        names = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
        yield from _check_lags(config, *names)


def setting_problem(setting: Setting, text: str) -> str:
    """Return what is wrong with a value, or the empty string."""
    value = text.strip()
    if setting.pattern:
        is_match = re.fullmatch(setting.pattern, value) is not None
        return "" if is_match else f"{text!r} does not match {setting.pattern}"
    match setting.type:
        case SettingType.BOOLEAN:
            is_valid = value.lower() in ("true", "false")
            return "" if is_valid else f'{text!r} is not "true" or "false"'
        case SettingType.STRING | SettingType.LIST:
            return _word_problem(setting, value)
        case _:
            return _number_problem(setting, value)


def _check(
    config: Mapping[str, Any], known: Mapping[str, Setting], owner: str
) -> Iterator[SchemaProblem]:
    for key, value in config.items():
        path = ("spec", "config", key)
        setting = known.get(key)
        if setting is not None:
            if problem := setting_problem(setting, str(value)):
                yield SchemaProblem(path=path, reason=problem)
        else:
            yield SchemaProblem(path=path, reason=_name_problem(key, known, owner))


def _name_problem(name: str, known: Mapping[str, Setting], owner: str) -> str:
    if name in _FORMER or name.startswith("zookeeper."):
        instead = _FORMER.get(name)
        return f"Kafka 4 has it no longer; {f'write {instead}' if instead else 'leave it out'}"
    if owner == "broker" and name in OWNED_BROKER_SETTINGS:
        return "it follows from spec.pools and spec.listeners; leave it out"
    if owner == "broker" and name.startswith(_SECURITY):
        return "brokers do not offer this yet; it is not accepted without effect"
    hint = nearest(name, known) or f"see Kafka's {owner} configs for the names"
    return f"unknown {owner} setting; {hint}"


def _check_lags(config: Mapping[str, Any], least: str, most: str) -> Iterator[SchemaProblem]:
    if least in config and most in config and int(config[least]) > int(config[most]):
        reason = f"{config[least]} is more than {most} ({config[most]})"
        yield SchemaProblem(path=("spec", "config", least), reason=reason)


def _word_problem(setting: Setting, value: str) -> str:
    if not setting.words:
        # What the format of the broker's file gives a meaning.
        is_plain = len(value.splitlines()) <= 1 and "\\" not in value and "${" not in value
        return "" if is_plain else f"{value!r}: no line breaks, backslashes and variables here"
    words = [value]
    if setting.type is SettingType.LIST:
        words = [part.strip() for part in value.split(",")] if value else []
    if any(word not in setting.words for word in words):
        return f"{value!r} is not one of {', '.join(setting.words)}"
    is_wrong = len(set(words)) < len(words) and not setting.may_repeat
    return f"{value!r} has a word twice" if is_wrong else ""


def _number_problem(setting: Setting, value: str) -> str:
    is_whole = setting.type is not SettingType.DOUBLE
    if not (_WHOLE if is_whole else _FRACTION).fullmatch(value):
        kind = "an integer" if is_whole else "a number"
        return f"{value!r} is not {kind}; Kafka's settings have no units"
    number = int(value) if is_whole else float(value)
    if number in setting.also:
        return ""
    extra = "".join(f", or {each}" for each in setting.also)
    low, high = _limits(setting)
    if number < low:
        return f"{value} is too small; at least {low}{extra}"
    return f"{value} is too large; at most {high}{extra}" if number > high else ""


def _limits(setting: Setting) -> tuple[float, float]:
    greatest = {SettingType.INT: INT_MAX, SettingType.LONG: LONG_MAX}.get(setting.type)
    # Kafka's doubles are bounded by their settings alone.
    least, most = (-math.inf, math.inf) if greatest is None else (-greatest - 1, greatest)
    low = least if setting.low is None else setting.low
    return low, most if setting.high is None else setting.high
