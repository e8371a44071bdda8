"""The byte layout of the usual fetch between replicas, written and read in place.

Each acks=all write costs one fetch of each follower and its answer, and there the message objects
of the general path cost several times as much as the records. A request is usual if it changes
partitions of a session and forgets none; an answer is usual if no partition in it has an error or a
diverging log. `None` leaves anything else to the general codec. Both write the same bytes
(`test_fast_fetch.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple

from headrace_broker.protocol.wire import read_varuint, varuint

#: The version whose layout this is.
FAST_VERSION = 18

_SMALL = 0x7F  # a count up to this, which is written plus one, is one byte of varint
_TAGS = 0
_NO_BYTES = b""

# max.wait.ms, min bytes, max bytes, isolation level, session id, session epoch, topics
_REQUEST_HEAD = Struct(">iiibiiB")
_TOPIC = Struct(">16sB")  # id, partitions
# index, leader epoch, fetch offset, last fetched epoch, log start offset, max bytes, no tags
_ASKED = Struct(">iiqiqiB")
# the last topic's tags, no forgotten topics, no rack, one tag: replica state (id, epoch, no tags)
_REQUEST_TAIL = Struct(">BBBBBBiqB")
_REPLICA_STATE_TAG = 1
_REPLICA_STATE_BYTES = 13
_NONE = 1  # an array's length is written plus one
_FIXED_TAIL = [_TAGS, _NONE, _NONE, 1, _REPLICA_STATE_TAG, _REPLICA_STATE_BYTES]

# throttle time, error, session id, topics
_ANSWER_HEAD = Struct(">ihiB")
# index, error, high watermark, last stable offset, log start offset, no aborted transactions,
# no preferred replica
_ANSWER = Struct(">ihqqqBi")
_NO_OFFSET = -1
_NO_REPLICA = -1


# All of a request that names one partition, as nearly all do, at once; and what is fixed in it.
_ONE_ASKED = Struct(">iiibiiB16sBiiqiqiBBBBBBBiqB")
_ONE = 2
_ONE_FIXED_TAIL = [_TAGS, *_FIXED_TAIL]
# Of an answer for one partition all before its records' length.
_ONE_ANSWER = Struct(">ihiB16sBihqqqBi")
_ONE_ANSWER_TAIL = b"\0\0\0"  # tags of the partition, the topic and the answer

_new_tuple = tuple.__new__  # a named tuple's own constructor is Python code


class Asked(NamedTuple):
    """A partition in a request."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int


class Request(NamedTuple):
    """A usual request: the next one of a follower's session."""

    max_wait_ms: int
    max_bytes: int
    session_id: int
    session_epoch: int
    replica_id: int
    replica_epoch: int
    partitions: Sequence[Asked]


class Found(NamedTuple):
    """A partition in an answer."""

    topic_id: bytes
    partition: int
    high_watermark: int
    log_start_offset: int
    records: bytes | memoryview


def write_request(request: Request) -> bytes | None:
    """Return a request's body; None if it has too many partitions."""
    max_wait_ms, max_bytes, session_id, session_epoch, replica_id, replica_epoch, asked = request
    if len(asked) == 1:
        topic_id, *fields = asked[0]
        head = (max_wait_ms, 1, max_bytes, 0, session_id, session_epoch, _ONE, topic_id, _ONE)
        return _ONE_ASKED.pack(*head, *fields, *_ONE_FIXED_TAIL, replica_id, replica_epoch, _TAGS)
    topics = _by_topic(asked)
    if topics is None:
        return None
    parts = [
        _REQUEST_HEAD.pack(max_wait_ms, 1, max_bytes, 0, session_id, session_epoch, len(topics) + 1)
    ]
    for topic_id, partitions in topics.items():
        if len(parts) > 1:
            parts.append(b"\0")
        parts.append(_TOPIC.pack(topic_id, len(partitions) + 1))
        parts += [_ASKED.pack(*partition[1:], _TAGS) for partition in partitions]
    parts.append(_REQUEST_TAIL.pack(*_FIXED_TAIL, replica_id, replica_epoch, _TAGS))
    return _NO_BYTES.join(parts)


def read_request(frame: memoryview, position: int) -> Request | None:
    """Read a request's body; None if it is not a usual one, or truncated."""
    try:
        if len(frame) - position == _ONE_ASKED.size:
            return _read_one(frame, position)
        return _read_request(frame, position)
    except (IndexError, struct.error):
        return None


def _read_one(frame: memoryview, position: int) -> Request | None:
    (
        max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, topics,
        topic_id, partitions, index, leader_epoch, fetch_offset, last_epoch, log_start, limit,
        *fixed, replica_id, replica_epoch, tags,
    ) = _ONE_ASKED.unpack_from(frame, position)  # fmt: skip
    if (
        min_bytes != 1
        or isolation
        or session_epoch <= 0
        or topics != _ONE
        or partitions != _ONE
        or fixed != _ONE_FIXED_TAIL
        or tags
    ):
        return None
    asked: Asked = _new_tuple(
        Asked, (topic_id, index, leader_epoch, fetch_offset, last_epoch, log_start, limit)
    )
    fields = max_wait_ms, max_bytes, session_id, session_epoch, replica_id, replica_epoch, [asked]
    return _new_tuple(Request, fields)


def _read_request(frame: memoryview, position: int) -> Request | None:
    end = len(frame) - _REQUEST_TAIL.size
    head = _REQUEST_HEAD.unpack_from(frame, position)
    max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, topics = head
    *fixed, replica_id, replica_epoch, tags = _REQUEST_TAIL.unpack_from(frame, end)
    if (
        min_bytes != 1
        or isolation
        or not 1 < topics <= _SMALL
        or session_epoch <= 0
        or fixed != _FIXED_TAIL
        or tags
    ):
        return None
    position += _REQUEST_HEAD.size
    asked: list[Asked] = []
    for number in range(topics - 1):
        # Between two topics are the first one's tags.
        unusual = frame[position] if number else 0
        position += number > 0
        topic_id, partitions = _TOPIC.unpack_from(frame, position)
        position += _TOPIC.size
        for _ in range(partitions - 1):
            *fields, tags = _ASKED.unpack_from(frame, position)
            unusual |= tags
            asked.append(Asked(topic_id, *fields))
            position += _ASKED.size
        if unusual or not 1 < partitions <= _SMALL:
            return None
    if position != end:
        return None
    return Request(
        max_wait_ms, max_bytes, session_id, session_epoch, replica_id, replica_epoch, asked
    )


def write_answer(session_id: int, found: Sequence[Found]) -> list[bytes | memoryview] | None:
    """Return the parts of an answer's body; None if it has too many partitions."""
    if len(found) == 1:
        topic_id, index, high_watermark, log_start_offset, records = found[0]
        head = _ONE_ANSWER.pack(
            0, 0, session_id, _ONE, topic_id, _ONE,
            index, 0, high_watermark, _NO_OFFSET, log_start_offset, 0, _NO_REPLICA,
        )  # fmt: skip
        return [head, varuint(len(records) + 1), records, _ONE_ANSWER_TAIL]
    topics = 0
    before = None
    for data in found:
        if data[0] != before:
            before, topics = data[0], topics + 1
    if len(found) >= _SMALL:
        return None
    parts: list[bytes | memoryview] = [_ANSWER_HEAD.pack(0, 0, session_id, topics + 1)]
    before = None
    for number, (topic_id, index, high_watermark, log_start_offset, records) in enumerate(found):
        if topic_id != before:
            if before is not None:
                parts.append(b"\0")
            before = topic_id
            partitions = _run_length(found, number)
            parts.append(_TOPIC.pack(topic_id, partitions + 1))
        parts += (
            _ANSWER.pack(index, 0, high_watermark, _NO_OFFSET, log_start_offset, 0, _NO_REPLICA),
            varuint(len(records) + 1),
            records,
            b"\0",
        )
    parts.append(b"\0\0" if found else b"\0")
    return parts


def read_answer(frame: memoryview, position: int) -> tuple[int, list[Found]] | None:
    """Return an answer's session and contents; None if it is not a usual one.

    The records are views of the frame.
    """
    try:
        return _read_answer(frame, position)
    except (IndexError, struct.error):
        return None


def _read_answer(frame: memoryview, position: int) -> tuple[int, list[Found]] | None:
    throttle_ms, error, session_id, topics = _ANSWER_HEAD.unpack_from(frame, position)
    if throttle_ms or error or not 0 < topics <= _SMALL:
        return None
    position += _ANSWER_HEAD.size
    found: list[Found] = []
    for _ in range(topics - 1):
        topic_id, partitions = _TOPIC.unpack_from(frame, position)
        position += _TOPIC.size
        if not 0 < partitions <= _SMALL:
            return None
        for _ in range(partitions - 1):
            index, error, high_watermark, _, log_start, aborted, _ = _ANSWER.unpack_from(
                frame, position
            )
            length, start = read_varuint(frame, position + _ANSWER.size)
            position = start + length - 1
            # Tags mean diverging logs, or a new leader.
            if error or aborted or not length or frame[position]:
                return None
            fields = topic_id, index, high_watermark, log_start, frame[start:position]
            found.append(_new_tuple(Found, fields))
            position += 1
        if frame[position]:
            return None
        position += 1
    return (session_id, found) if position == len(frame) - 1 and not frame[position] else None


def _by_topic(asked: Iterable[Asked]) -> dict[bytes, list[Asked]] | None:
    topics: dict[bytes, list[Asked]] = {}
    for partition in asked:
        known = topics.get(partition[0])
        if known is None:
            topics[partition[0]] = [partition]
        else:
            known.append(partition)
            if len(known) >= _SMALL:
                return None
    return topics if len(topics) < _SMALL else None


def _run_length(found: Sequence[Found], first: int) -> int:
    topic_id, end = found[first][0], first + 1
    while end < len(found) and found[end][0] == topic_id:
        end += 1
    return end - first
