"""Durations in the CRDs' format: `90s`, `1h30m`."""

from __future__ import annotations

import re

__all__ = ["parse_duration_ms"]

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration_ms(text: str) -> int:
    """Return the milliseconds of `1h30m`. Raises ValueError."""
    parts = re.findall(r"([0-9]+)(ms|s|m|h|d)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration like 90s or 1h30m")
    return sum(int(number) * _UNITS_MS[unit] for number, unit in parts)
