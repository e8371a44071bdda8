"""One setting of a broker, and short ways to write one down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace_broker.metadata.settings.resources import ConfigType
from headrace_broker.metadata.settings.setting_types import (
    INT_MAX,
    LONG_MAX,
    Bounds,
    Check,
    OneOf,
    parse_value,
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting of the broker."""

    name: str
    type: ConfigType
    default: Any
    doc: str
    check: Check | None = None
    required: bool = False

    def parse(self, text: str) -> Any:
        """Return the typed value of `text`; raise ValueError saying what is allowed."""
        value = parse_value(text, self.type)
        if self.check is not None:
            self.check.check(value)
        return value


def int_setting(
    name: str,
    default: int | None,
    doc: str,
    *,
    low: int = 0,
    high: int = INT_MAX,
    required: bool = False,
) -> Setting:
    """Return a setting that is an int of 32 bits."""
    return Setting(
        name=name,
        type=ConfigType.INT,
        default=default,
        doc=doc,
        check=Bounds(low=low, high=high),
        required=required,
    )


def long_setting(name: str, default: int | None, doc: str, *, low: int = 0) -> Setting:
    """Return a setting that is an int of 64 bits."""
    check = Bounds(low=low, high=LONG_MAX)
    return Setting(name=name, type=ConfigType.LONG, default=default, doc=doc, check=check)


def flag_setting(name: str, doc: str, *, default: bool) -> Setting:
    """Return a setting that is true or false."""
    return Setting(name=name, type=ConfigType.BOOLEAN, default=default, doc=doc)


def text_setting(name: str, default: str | None, doc: str) -> Setting:
    """Return a setting that is any text."""
    return Setting(name=name, type=ConfigType.STRING, default=default, doc=doc)


def list_setting(
    name: str,
    default: list[str] | None,
    doc: str,
    *,
    allowed: tuple[str, ...] = (),
    required: bool = False,
) -> Setting:
    """Return a setting that is a list of texts."""
    return Setting(
        name=name,
        type=ConfigType.LIST,
        default=default,
        doc=doc,
        check=OneOf(allowed) if allowed else None,
        required=required,
    )


def one_of_setting(name: str, default: str, doc: str, allowed: tuple[str, ...]) -> Setting:
    """Return a setting that is one of some texts."""
    check = OneOf(allowed)
    return Setting(name=name, type=ConfigType.STRING, default=default, doc=doc, check=check)
