"""The fast path of Produce: one partition, acks 1 or all.

A broker with few partitions mostly gets one batch for one partition per request, and then the
message objects of the general path cost as much as the append. This module reads the few fields of
such a request in place, appends, and builds the response from the request's own bytes. Every other
request, and every error, is left to the general path with nothing appended: clients see the same
either way, which `tests/broker/server/test_fast_produce.py` checks.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.wire import read_varuint
from headrace_broker.server.produce.append import (
    ACKS_ALL,
    ACKS_LEADER,
    TOPIC_IDS_FROM,
    Wait,
    check,
    wait_of,
)
from headrace_broker.server.produce.delayed_produce import FastDelayedProduce

if TYPE_CHECKING:
    from headrace_broker.server.clock import Clock
    from headrace_broker.server.network.busy_poll import BusyPoll
    from headrace_broker.server.partitions.partition import Partition
    from headrace_broker.server.partitions.replica_manager import ReplicaManager

API_KEY = int(ApiKey.PRODUCE)
FAST_VERSIONS = range(9, 14)
"""The versions with the layout below: flexible, and with topic ids from 13 on."""
_FROM, _TO = FAST_VERSIONS[0], FAST_VERSIONS[-1]
_TARGETS_MAX = 4096  # partitions whose bytes in a request are remembered

# No transactional id, acks, timeout.ms, one topic, and its name's length or its id's first byte.
_HEAD = Struct(">BhiBB")
_ACKS = (ACKS_ALL, ACKS_LEADER)
_COMMIT = Wait.COMMIT
_ONE = 2  # a compact array's length is written plus one
_TOPICS_AT = 7
_NAME_AT = 8
_ID_BYTES = 16
_NAME_LENGTH_MAX = 0x7F  # one byte of varint
# The topic's partition array (one) and index follow the topic; then the records' length.
_INDEX_BYTES = 5
_NO_TAGS = b"\0\0\0"  # of the partition, the topic and the request
# Frame length, correlation id, no tagged fields.
_PREFIX = Struct(">iiB")
# Error 0, base offset, append time, log start offset; no record errors, no message, no tagged
# fields; the topic's; throttle time 0; the answer's tagged fields.
_TAIL = Struct(">hqqqBBBBiB")
_SMALL_BYTES = 4096  # of records that are likely to be a single one
_BODY_BYTES_MIN = 64  # less than any batch; the fixed fields are within it
_FRAME_BYTES = _PREFIX.size - 4 + _TAIL.size


class Node(Protocol):
    """The parts of the node that are used here; `replicas` is read at the first request."""

    @property
    def clock(self) -> Clock:
        """Tells the time."""

    @property
    def replicas(self) -> ReplicaManager:
        """This broker's replicas."""


class FastProduce:
    """Remembers which bytes of a request name which partition of this broker."""

    __slots__ = ("_busy_poll", "_by_id", "_by_name", "_clock", "_node")

    def __init__(self, node: Node, busy_poll: BusyPoll) -> None:
        self._node = node
        self._busy_poll = busy_poll
        self._clock = node.clock
        self._by_id: dict[bytes, Partition] = {}
        self._by_name: dict[bytes, Partition] = {}

    def answer(
        self, frame: memoryview, version: int, correlation_id: int, position: int
    ) -> list[bytes] | FastDelayedProduce | None:
        """Append and return the response's frame, or None if the general path must answer.

        With acks=all and followers it returns a delayed operation. `position` is where the
        request's body begins. Raises IndexError if a topic's name goes beyond the request;
        LogDirectoryFailure.
        """
        if not _FROM <= version <= _TO or len(frame) - position < _BODY_BYTES_MIN:
            return None
        no_transaction, acks, timeout_ms, topics, first = _HEAD.unpack_from(frame, position)
        is_usual = not no_transaction and topics == _ONE and acks in _ACKS
        records_at = self._records_at(frame, version, position, first) if is_usual else -1
        if records_at < 0:
            return None
        target = frame[position + _TOPICS_AT : records_at].tobytes()
        known = self._by_id if version >= TOPIC_IDS_FROM else self._by_name
        partition = known.get(target)
        if partition is None:
            self._learn(known, target, version)
            return None
        length, start = read_varuint(frame, records_at)
        end = start + length - 1
        if frame[end:] != _NO_TAGS or partition.flushing is not None:
            return None
        try:
            info = partition.append(frame[start:end], acks, self._clock.now_ms())
        except ApiError:
            # Nothing was appended. The general path finds the same error, or the topic's successor.
            del known[target]
            return None
        tail = _TAIL.pack(0, info[0], info[2], info[3], 1, 0, 0, 0, 0, 0)
        prefix = _PREFIX.pack(_FRAME_BYTES + len(target), correlation_id, 0)
        answer = [prefix, target, tail]
        delayed: FastDelayedProduce | None = None
        if acks == ACKS_ALL and wait_of(partition, acks, info) is _COMMIT:
            delayed = FastDelayedProduce(
                version, correlation_id, answer, partition, info, self._busy_poll.committed
            )
            delayed.delay(partition.host.purgatory, timeout_ms)
        if length < _SMALL_BYTES:
            self._busy_poll.request_taken()
        return delayed or answer

    @staticmethod
    def _records_at(frame: memoryview, version: int, position: int, first: int) -> int:
        """Return where the records of a topic's only partition begin, or -1."""
        if version >= TOPIC_IDS_FROM:
            index_at = position + _NAME_AT + _ID_BYTES
        elif first <= _NAME_LENGTH_MAX:
            index_at = position + _NAME_AT + first
        else:
            return -1
        return index_at + _INDEX_BYTES if frame[index_at] == _ONE else -1

    def _learn(self, known: dict[bytes, Partition], target: bytes, version: int) -> None:
        """Remember a partition by its bytes in a request."""
        replicas = self._node.replicas
        index = int.from_bytes(target[-4:], signed=True)
        try:
            if version >= TOPIC_IDS_FROM:
                topic_id = UUID(bytes=target[1 : 1 + _ID_BYTES])
                partition = replicas.partition_by_id(topic_id, index)
            else:
                partition = replicas.partition(target[2:-_INDEX_BYTES].decode(), index)
            check(ACKS_LEADER, partition.topic)
        except (ApiError, UnicodeDecodeError):
            return
        if len(known) >= _TARGETS_MAX:
            known.clear()
        known[target] = partition
