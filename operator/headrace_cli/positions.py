"""Positions in a topic as users write them: earliest, a moment, a time ago, an offset."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from headrace_cli.errors import BadInputError

__all__ = ["Position", "PositionKind", "parse_duration", "parse_moment", "parse_position"]

DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
INTEGER_MAX = 2**63 - 1
DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


class PositionKind(StrEnum):
    """The ways to name a position."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"
    OFFSET = "offset"
    SHIFT = "shift"


@dataclass(frozen=True, kw_only=True)
class Position:
    """A position; `value` is milliseconds since 1970, an offset, or a number of records."""

    kind: PositionKind
    value: int = 0


def parse_position(text: str, *, now: datetime) -> Position:
    """Parse `earliest`, `latest`, `2026-01-31T10:00:00Z`, `15m` (ago), `42`, `+10`, `-10`.

    The kind may be explicit: `timestamp:…`, `duration:15m`, `offset:42`, `shift:-10`.
    """
    try:
        position = _parse(text, now)
    except OverflowError:
        raise BadInputError(f"{text}: too long ago") from None
    if abs(position.value) > INTEGER_MAX:
        raise BadInputError(f"{text}: more than {INTEGER_MAX}")
    return position


def _parse(text: str, now: datetime) -> Position:
    kind, colon, rest = text.partition(":")
    if text.lower() in {"earliest", "latest"}:
        return Position(kind=PositionKind(text.lower()))
    named = kind in {"timestamp", "duration", "offset", "shift"}
    value = rest if colon and named else text
    if kind == "shift" or (not named and re.fullmatch(r"[+-]\d+", value)):
        return Position(kind=PositionKind.SHIFT, value=_integer(value, text))
    if kind == "offset" or (not named and value.isdigit()):
        return Position(kind=PositionKind.OFFSET, value=_integer(value, text))
    if kind == "duration" or (not named and DURATION.match(value) and "-" not in value):
        moment = now - parse_duration(value)
        return Position(kind=PositionKind.TIMESTAMP, value=int(moment.timestamp() * 1000))
    if value.isdigit():
        return Position(kind=PositionKind.TIMESTAMP, value=int(value))
    return Position(kind=PositionKind.TIMESTAMP, value=int(parse_moment(value).timestamp() * 1000))


def parse_duration(text: str) -> timedelta:
    """Parse `90s`, `15m`, `1h30m`, `250ms`, `2d`; a bare number is seconds."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        text += "s"
    parts = DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise BadInputError(f"{text}: not a duration such as 90s, 15m, 1h30m")
    try:
        return timedelta(
            seconds=sum(float(number) * DURATION_UNITS[unit] for number, unit in parts)
        )
    except OverflowError:
        raise BadInputError(f"{text}: longer than {timedelta.max.days} days") from None


def parse_moment(text: str) -> datetime:
    """Parse ISO 8601; without an offset it is UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadInputError(
            f"{text}: not a position (earliest, latest, 2026-01-31T10:00:00Z, 15m, 42)"
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _integer(value: str, text: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise BadInputError(f"{text}: {value!r} is not a whole number") from None
