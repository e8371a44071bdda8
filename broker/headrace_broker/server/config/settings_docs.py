"""Writes `docs/configuration.md` from the tables of settings, as its head says."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from headrace_broker.metadata.settings.setting_types import Bounds, Check, OneOf, format_value
from headrace_broker.metadata.settings.topic_settings import BROKER_SYNONYMS, TOPIC_SETTINGS
from headrace_broker.server.config.settings import BROKER_SETTINGS

_HEAD = """# Configuration

Made from the broker's tables by `python -m headrace_broker.server.config.settings_docs`; a test
keeps it so. Names, types and defaults are Kafka's, except where a name begins with `headrace.` or
the description says why a default differs. A setting that is not here is an error at start.
"""


def render() -> str:
    """Return the page."""
    broker = [
        _row(item.name, item.type.name, item.default, item.check, item.doc)
        for item in BROKER_SETTINGS.values()
    ]
    topic = [
        _row(item.name, item.type.name, item.default, item.check, item.doc)
        for item in TOPIC_SETTINGS.values()
    ]
    synonyms = [
        f"| `{name}` | `{setting.name}` |" for name, (setting, _) in sorted(BROKER_SYNONYMS.items())
    ]
    return "\n".join(
        [
            _HEAD,
            *_table("Broker", broker),
            *_table("Topic", topic),
            "## Broker settings that give topics their defaults",
            "",
            "| broker | topic |",
            "|---|---|",
            *synonyms,
            "",
        ]
    )


def _table(title: str, rows: Iterable[str]) -> list[str]:
    return [
        f"## {title}",
        "",
        "| name | type | default | allowed | what it does |",
        "|---|---|---|---|---|",
        *rows,
        "",
    ]


def _row(name: str, kind: str, default: object, check: Check | None, doc: str) -> str:
    shown = format_value(default)
    value = "" if shown is None else f"`{shown}`" if shown else "empty"
    text = doc.replace("|", "\\|").replace("\n", " ")
    return f"| `{name}` | {kind.lower()} | {value} | {_allowed(check)} | {text} |"


def _allowed(check: Check | None) -> str:
    if isinstance(check, OneOf):
        return ", ".join(f"`{item}`" for item in check.allowed)
    if isinstance(check, Bounds):
        low = "" if check.low is None else f"≥ {check.low}"
        high = "" if check.high is None or check.high >= 2**31 - 1 else f"≤ {check.high}"
        return " and ".join(item for item in (low, high) if item)
    return ""


if __name__ == "__main__":
    sys.stdout.write(render())
