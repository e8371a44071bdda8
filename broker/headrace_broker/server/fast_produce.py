"""The usual Produce request in one straight line: one partition, acks 1 or all.

Producers send one batch for one partition at a time to a broker with few partitions, and that is
where the message objects of the general path cost as much as the append. This reads such a
request's few fields in place, appends, and lays the answer out from the request's own bytes.
Whatever is not exactly that, and every error, is left to the general path with nothing appended:
what a client sees is the same either way, which `tests/broker/server/test_fast_produce.py` checks.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING
from uuid import UUID

from headrace_broker.metadata.entities import GROUP_METADATA_TOPIC
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.wire import read_varuint
from headrace_broker.server.api.produce import TOPIC_IDS_FROM
from headrace_broker.server.commit_slot import CommitSlot
from headrace_broker.server.waiting import Deadlines

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker
    from headrace_broker.server.busy_poll import BusyPoll
    from headrace_broker.server.partition import Partition

API_KEY = int(ApiKey.PRODUCE)
#: From here on requests and answers are laid out as below: flexible, and with topic ids from 13.
FAST_FROM = 9
_TARGETS_MAX = 4096  # partitions whose request bytes are remembered

# No transactional id, acks, timeout.ms, one topic, and its name's length or its id's first byte.
_HEAD = Struct(">BhiBB")
_ACKS_LEADER = 1
_ACKS_ALL = -1
_ACKS = (_ACKS_ALL, _ACKS_LEADER)
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


class FastProduce:
    """Remembers which bytes of a request name which partition of this broker."""

    __slots__ = ("_broker", "_busy_poll", "_by_id", "_by_name", "_clock", "_deadlines")

    def __init__(self, broker: Broker, busy_poll: BusyPoll) -> None:
        self._broker = broker
        self._busy_poll = busy_poll
        self._clock = broker.clock
        self._deadlines = Deadlines()
        self._by_id: dict[bytes, Partition] = {}
        self._by_name: dict[bytes, Partition] = {}

    def answer(
        self, frame: memoryview, version: int, correlation_id: int, position: int
    ) -> list[bytes] | CommitSlot | None:
        """Append and return the whole answer's frame, or None where this is not the usual request.

        Where acks=all waits for followers it is the place of an answer. `position` is where the
        request's body begins. Raises IndexError for a topic's name that goes beyond the request;
        LogDirectoryFailure.
        """
        if version < FAST_FROM or len(frame) - position < _BODY_BYTES_MIN:
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
            # Nothing was appended. The general path finds the same, or the topic's successor.
            del known[target]
            return None
        tail = _TAIL.pack(0, info[0], info[2], info[3], 1, 0, 0, 0, 0, 0)
        prefix = _PREFIX.pack(_FRAME_BYTES + len(target), correlation_id, 0)
        answer = [prefix, target, tail]
        slot: CommitSlot | None = None
        if acks == _ACKS_ALL and partition.high_watermark <= info[1]:
            slot = CommitSlot(
                correlation_id, version, answer, partition, info, self._busy_poll.committed
            )
            slot.wait(self._deadlines, timeout_ms)
        if length < _SMALL_BYTES:
            self._busy_poll.request_taken()
        return slot or answer

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
        """Remember a partition's bytes; the next request finds it."""
        replicas = self._broker.replicas
        index = int.from_bytes(target[-4:], signed=True)
        try:
            if version >= TOPIC_IDS_FROM:
                topic_id = UUID(bytes=target[1 : 1 + _ID_BYTES])
                partition = replicas.partition_by_id(topic_id, index)
            else:
                partition = replicas.partition(target[2:-_INDEX_BYTES].decode(), index)
        except (ApiError, UnicodeDecodeError):
            return
        if partition.topic == GROUP_METADATA_TOPIC:
            return
        if len(known) >= _TARGETS_MAX:
            known.clear()
        known[target] = partition
