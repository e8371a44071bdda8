"""Durations and moments in human form: `10s`, `1 hour`; `2026-01-31T12:00:00Z`. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime

__all__ = ["parse_duration", "parse_moment", "spark_interval"]

_MILLISECONDS = {
    "ms": 1,
    "millisecond": 1,
    "s": 1_000,
    "sec": 1_000,
    "second": 1_000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)


def parse_duration(text: str) -> int:
    """Return milliseconds. Raises `ValueError` that says what is accepted."""
    match = _DURATION.fullmatch(text)
    unit = match[2].lower() if match else ""
    factor = _MILLISECONDS.get(unit) or _MILLISECONDS.get(unit.removesuffix("s"))
    if match is None or factor is None:
        raise ValueError(f"{text!r} is not a duration: write a number and ms, s, m, h or d, as 10s")
    return round(float(match[1]) * factor)


def parse_moment(text: str) -> int:
    """Return milliseconds since 1970 of ISO 8601; without an offset it is UTC.

    Raises `ValueError` that says what is accepted.
    """
    try:
        moment = datetime.fromisoformat(text)
        milliseconds = round((moment.replace(tzinfo=moment.tzinfo or UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        milliseconds = -1
    if milliseconds < 0:
        raise ValueError(
            f"{text!r} is no moment: write ISO 8601 from 1970 on, as 2026-01-31T12:00:00Z"
        )
    return milliseconds


def spark_interval(milliseconds: int) -> str:
    """Return the duration in Spark's syntax."""
    return f"{milliseconds} milliseconds"
