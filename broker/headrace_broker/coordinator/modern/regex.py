"""Regular expressions of topic names, in RE2's syntax (KIP-848).

RE2 matches in time linear in the name's length, whatever pattern a client sends; the size of its
program is bounded too. A pattern must match the whole name, as in Kafka's coordinator.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import re2

from headrace_broker.protocol.errors import ApiError, ErrorCode

PATTERN_LENGTH_MAX: Final = 4_096
_PROGRAM_BYTES_MAX: Final = 1 << 20
_COMPILED_MAX: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRegex:
    """The topics that a pattern matched, as of a version of the metadata, and when."""

    topics: frozenset[str] = field(default_factory=frozenset)
    version: int = 0
    timestamp_ms: int = 0


@lru_cache(maxsize=_COMPILED_MAX)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PROGRAM_BYTES_MAX
    return re2.compile(pattern, options)


def check_regex(pattern: str) -> None:
    """Raise INVALID_REGULAR_EXPRESSION if RE2 cannot compile it, or it is too large."""
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"a regular expression has at most {PATTERN_LENGTH_MAX} characters",
        )
    try:
        _compiled(pattern)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {text}.",
        ) from error


def resolve_regexes(
    patterns: Collection[str], names: Iterable[str], version: int, timestamp_ms: int
) -> dict[str, ResolvedRegex]:
    """Match every name with every pattern. A pattern that does not compile matches nothing."""
    programs: list[tuple[Any, set[str]]] = []
    found: dict[str, set[str]] = {}
    for pattern in patterns:
        matched = found[pattern] = set()
        try:
            programs.append((_compiled(pattern), matched))
        except re2.error:
            continue  # checked on arrival; another version's coordinator may have accepted it
    for name in names:
        for program, matched in programs:
            if program.fullmatch(name) is not None:
                matched.add(name)
    return {
        pattern: ResolvedRegex(topics=frozenset(topics), version=version, timestamp_ms=timestamp_ms)
        for pattern, topics in found.items()
    }
