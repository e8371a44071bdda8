"""What a Produce request does to one partition, whichever codec read it.

The fast path and the general handler both ask here what is refused, append, and learn here what
the answer waits for. Only how a request is read and an answer is written is theirs.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from headrace_broker.metadata.entities import INTERNAL_TOPICS
from headrace_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from headrace_broker.log.partition_log import AppendInfo
    from headrace_broker.server.partitions.partition import Partition

ACKS_NONE = 0
ACKS_LEADER = 1
ACKS_ALL = -1
TOPIC_IDS_FROM = 13
"""The version from which requests and answers name topics by id."""


class Wait(Enum):
    """What an answer waits for."""

    NOTHING = auto()
    COMMIT = auto()
    FSYNC = auto()


_NOTHING, _COMMIT, _FSYNC = Wait.NOTHING, Wait.COMMIT, Wait.FSYNC


def check(acks: int, topic: str) -> None:
    """Raise ApiError where clients may not ask for this."""
    if acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
        raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {acks}; it must be 0, 1 or -1")
    if topic in INTERNAL_TOPICS:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, "clients cannot write to an internal topic"
        )


def wait_of(partition: Partition, acks: int, info: AppendInfo) -> Wait:
    """Return what the answer to an append waits for: acks=all for the commit, 1 for flush.*."""
    if acks == ACKS_ALL:
        return _COMMIT if partition.high_watermark <= info.last_offset else _NOTHING
    return _FSYNC if acks and partition.flushing is not None else _NOTHING


def not_in_time(partition: Partition) -> ApiError:
    """Return what a producer hears whose records were appended and not committed in its time."""
    if partition.leading is not None and partition.leading.is_under_min_isr:
        return ApiError(
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            "appended, but too few replicas are in sync to commit it",
        )
    return ApiError(ErrorCode.REQUEST_TIMED_OUT, "not committed in time; its outcome is unknown")
