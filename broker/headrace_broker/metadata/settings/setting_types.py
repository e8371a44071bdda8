"""Parses the text of a setting into a checked value, and formats values.

The grammar is that of Kafka's ConfigDef: this module accepts and refuses the same texts, with a
message that names the setting and the accepted values.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace_broker.metadata.settings.resources import ConfigType

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

_MS_PER_MINUTE = 60_000
_MS_PER_HOUR = 3_600_000
_THROTTLED_REPLICA = re.compile(r"[0-9]+:[0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """An inclusive range. `also` has single values outside of it with a special meaning."""

    low: float | None = None
    high: float | None = None
    also: tuple[int, ...] = ()

    def check(self, value: Any) -> None:
        """Raise ValueError for a number outside."""
        if value in self.also:
            return
        extra = "".join(f", or {value}" for value in self.also)
        if self.low is not None and value < self.low:
            raise ValueError(f"Value must be at least {self.low}{extra}")
        if self.high is not None and value > self.high:
            raise ValueError(f"Value must be no more than {self.high}{extra}")


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of these strings; in a list, each item is one of them."""

    allowed: tuple[str, ...]
    may_repeat: bool = False
    """Whether a list may have an item twice."""

    def check(self, value: Any) -> None:
        """Raise ValueError for another string."""
        items = value if isinstance(value, list) else [value]
        for item in items:
            if item not in self.allowed:
                raise ValueError(f"{item!r} is none of the allowed {', '.join(self.allowed)}")
        if len(set(items)) != len(items) and not self.may_repeat:
            raise ValueError("a value is in the list twice")


@dataclass(frozen=True, slots=True)
class ThrottledReplicas:
    """A list of partition:broker, or the single item *."""

    def check(self, value: Any) -> None:
        """Raise ValueError for anything else."""
        if value != ["*"] and not all(_THROTTLED_REPLICA.fullmatch(item) for item in value):
            raise ValueError("the list must be empty, * or partition:broker,partition:broker,…")


_DURATION = re.compile(
    r"by_duration:P(?=.)(?:([0-9]{1,9})D)?"
    r"(?:T(?=.)(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)S)?)?"
)


def duration_ms(text: str) -> int | None:
    """Return the milliseconds of `by_duration:PnDTnHnMn.nS`; None for any other text."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    days, hours_, minutes_, seconds = (float(part) if part else 0.0 for part in found.groups())
    return int((((days * 24 + hours_) * 60 + minutes_) * 60 + seconds) * 1000)


@dataclass(frozen=True, slots=True)
class ResetPolicy:
    """latest, earliest, or a duration: the start position of a share group (KIP-932, KIP-1106)."""

    def check(self, value: Any) -> None:
        """Raise ValueError for anything else."""
        if value not in {"latest", "earliest"} and duration_ms(value) is None:
            raise ValueError("it must be latest, earliest or by_duration:PnDTnHnMn.nS")


_TOPIC_CHARACTERS = re.compile(r"[a-zA-Z0-9._-]{0,200}")
_OF_THE_CLUSTERS_OWN = "__"


@dataclass(frozen=True, slots=True)
class TopicNamePrefix:
    """A prefix of topic names that no internal topic has; it may be empty."""

    def check(self, value: Any) -> None:
        """Raise ValueError if no topic's name can begin with it."""
        if not _TOPIC_CHARACTERS.fullmatch(value):
            raise ValueError(
                "it must be at most 200 ASCII alphanumerics, '.', '_' and '-': topics begin with it"
            )
        if value.startswith(_OF_THE_CLUSTERS_OWN):
            raise ValueError("names of the cluster's own topics begin with '__'")


Check = Bounds | OneOf | ThrottledReplicas | ResetPolicy | TopicNamePrefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Synonym:
    """A broker setting that is a topic setting's default, `factor` for its unit."""

    name: str
    factor: int = 1

    def convert(self, value: Any) -> Any:
        """Return the broker's value in the topic setting's unit; below zero means no limit."""
        if self.factor == 1:
            return value
        return value * self.factor if value >= 0 else -1

    def default_of(self, value: Any) -> Any:
        """Return the topic setting's default in the broker setting's unit."""
        return value if self.factor == 1 else value // self.factor


def minutes(name: str) -> Synonym:
    """Return the synonym `name`, which counts minutes where the topic setting counts ms."""
    return Synonym(name=name, factor=_MS_PER_MINUTE)


def hours(name: str) -> Synonym:
    """Return the synonym `name`, which counts hours where the topic setting counts ms."""
    return Synonym(name=name, factor=_MS_PER_HOUR)


def parse_value(text: str, config_type: ConfigType) -> Any:
    """Return the typed value of `text`; raise ValueError saying what is wrong with it."""
    return _PARSERS[config_type](text.strip())


def format_value(value: Any) -> str | None:
    """Return a typed value in a properties file's format; None stays None."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(str(item) for item in value)
    return str(value)


def split_list(text: str) -> list[str]:
    """Return the items of a list setting's text."""
    return [item.strip() for item in text.split(",")] if text.strip() else []


def _parse_boolean(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError("Expected value to be either true or false")
    return text.lower() == "true"


def _whole_number(text: str, greatest: int, type_name: str) -> int:
    # Not int() alone: it also takes underscores and other scripts' digits, which Kafka does not.
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):
        raise ValueError(f"Not a number of type {type_name}")
    number = int(text)
    if not -greatest - 1 <= number <= greatest:
        raise ValueError(f"Not a number of type {type_name}")
    return number


def _parse_double(text: str) -> float:
    # Not float() alone, for the same reason as above.
    is_number = re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text)
    number = float(text) if is_number else math.nan
    if not math.isfinite(number):
        raise ValueError("Not a number of type DOUBLE")
    return number


_PARSERS: Mapping[ConfigType, Callable[[str], Any]] = {
    ConfigType.BOOLEAN: _parse_boolean,
    ConfigType.INT: lambda text: _whole_number(text, INT_MAX, "INT"),
    ConfigType.LONG: lambda text: _whole_number(text, LONG_MAX, "LONG"),
    ConfigType.DOUBLE: _parse_double,
    ConfigType.STRING: str,
    ConfigType.LIST: split_list,
}
