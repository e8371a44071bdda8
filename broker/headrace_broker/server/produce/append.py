"""How a Produce request is applied to one partition, whichever codec decoded it.

The fast path and the general handler both check and append through this module, and learn from it
what the response waits for. They differ only in how they decode a request and encode a response.
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
    """What a response waits for."""

    NOTHING = auto()
    COMMIT = auto()
    FSYNC = auto()


_NOTHING, _COMMIT, _FSYNC = Wait.NOTHING, Wait.COMMIT, Wait.FSYNC


def check(acks: int, topic: str) -> None:
    """Raise ApiError if clients may not produce this."""
    if acks not in (ACKS_NONE, ACKS_LEADER, ACKS_ALL):
        raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {acks}; it must be 0, 1 or -1")
    if topic in INTERNAL_TOPICS:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, "clients cannot write to an internal topic"
        )


def wait_of(partition: Partition, acks: int, info: AppendInfo) -> Wait:
    """Return what the response to an append waits for: acks=all for the commit, 1 for flush.*."""
    if acks == ACKS_ALL:
        return _COMMIT if partition.high_watermark <= info.last_offset else _NOTHING
    return _FSYNC if acks and partition.flushing is not None else _NOTHING


def not_in_time(partition: Partition) -> ApiError:
    """Return the error for a producer whose records were not committed within its timeout."""
    if partition.leading is not None and partition.leading.is_under_min_isr:
        return ApiError(
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            "appended, but too few replicas are in sync to commit it",
        )
    return ApiError(ErrorCode.REQUEST_TIMED_OUT, "not committed in time; its outcome is unknown")
