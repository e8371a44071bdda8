"""What values a setting of a broker or a topic may have: type, bounds and words, as Kafka's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class SettingType(Enum):
    """Kafka's types of values, as far as a Cluster's and a Topic's settings have them."""

    INT = auto()
    LONG = auto()
    DOUBLE = auto()
    BOOLEAN = auto()
    STRING = auto()
    LIST = auto()


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The accepted values of one setting.

    `low` and `high` are inclusive; `also` has single values outside. `words` are the accepted words
    of a string, or of a list's items; () accepts all. `may_repeat`: a list may have one twice. The
    whole text matches `pattern`.
    """

    type: SettingType
    low: float | None = None
    high: float | None = None
    also: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    may_repeat: bool = False
    pattern: str = ""


def int_of(
    low: int | None = None, high: int | None = None, *, also: tuple[int, ...] = ()
) -> Setting:
    """Return an integer of 32 bits; None: only that bounds it."""
    return Setting(type=SettingType.INT, low=low, high=high, also=also)


def long_of(low: int) -> Setting:
    """Return an integer of 64 bits."""
    return Setting(type=SettingType.LONG, low=low)


def double_of(low: float, high: float) -> Setting:
    """Return a fraction."""
    return Setting(type=SettingType.DOUBLE, low=low, high=high)


def one_of(*words: str) -> Setting:
    """Return one of these words."""
    return Setting(type=SettingType.STRING, words=words)


def list_of(*words: str, may_repeat: bool = False) -> Setting:
    """Return a list of these words, none of them twice unless they may; it may be empty."""
    return Setting(type=SettingType.LIST, words=words, may_repeat=may_repeat)


FLAG = Setting(type=SettingType.BOOLEAN)
TEXT = Setting(type=SettingType.STRING)
