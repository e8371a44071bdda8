"""Which names a topic may have (Kafka's `Topic.validate`)."""

import re
from collections.abc import Iterable

from headrace_broker.metadata.entities import CLUSTER_METADATA_TOPIC
from headrace_broker.protocol.errors import ApiError, ErrorCode

#: With a partition's number and ".delete" a folder name stays below 255 bytes.
TOPIC_NAME_LENGTH_MAX = 249

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def validate_topic_name(name: str) -> None:
    """Raise ApiError(INVALID_TOPIC_EXCEPTION) saying what is wrong with `name`."""
    problem = _problem(name)
    if problem is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


def is_valid_topic_name(name: str) -> bool:
    """Return whether a topic may have that name."""
    return _problem(name) is None


def _problem(name: str) -> str | None:
    if not name:
        return "the empty string is not allowed"
    if name in {".", ".."}:
        return "'.' or '..' is not allowed"
    if name == CLUSTER_METADATA_TOPIC:
        return f"'{name}' is the metadata quorum's own log"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return (
            f"the length of '{name}' is longer than the max allowed length {TOPIC_NAME_LENGTH_MAX}"
        )
    if not _LEGAL.fullmatch(name):
        return (
            f"'{name}' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'"
        )
    return None


def has_collision_characters(name: str) -> bool:
    """Return whether the name holds a character that metrics cannot tell from another."""
    return "." in name or "_" in name


def collision_key(name: str) -> str:
    """Return what two names share when they collide: '.' and '_' count as one character."""
    return name.replace(".", "_")


def collision_index(names: Iterable[str]) -> dict[str, str]:
    """Return the names that can collide, by their collision key."""
    return {collision_key(name): name for name in names if has_collision_characters(name)}
