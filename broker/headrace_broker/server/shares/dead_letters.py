"""`DeadLetterWriter`: copies records that a share group gave up to its dead-letter topic
(KIP-1191).

Owns the form of a dead letter, its partition, and how long writing it is retried. A record may be
written twice. It is never lost silently: if writing fails for `TRIED_SECONDS`, or the settings do
not allow the topic, the log and the metrics report it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from headrace_broker.log.batches import iterate_headers
from headrace_broker.metadata.auto_creation import WantedTopic
from headrace_broker.metadata.configs.group_config import dead_letter_topic_problem
from headrace_broker.metadata.settings.broker_settings import DEAD_LETTER_AUTO_CREATE
from headrace_broker.protocol.batch import NewRecord, Record, build_batch, iterate_records
from headrace_broker.protocol.errors import ApiError, DecodeError, ErrorCode
from headrace_broker.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from headrace_broker.protocol.types import NO_NODE, Offset, PartitionIndex
from headrace_broker.server.peers.peer_connection import PeerUnavailable

if TYPE_CHECKING:
    from headrace_broker.coordinator.share_partition.partition import DeadLetter
    from headrace_broker.metadata.entities import TopicImage
    from headrace_broker.metadata.image import MetadataImage
    from headrace_broker.server.clock import Clock
    from headrace_broker.server.config.broker_config import BrokerConfig
    from headrace_broker.server.partitions.partition import Partition
    from headrace_broker.server.partitions.replica_manager import ReplicaManager
    from headrace_broker.server.peers.peers import PeerConnections
    from headrace_broker.server.shares.share_settings import ShareSettings

log = structlog.get_logger(__name__)

ALLOWED: Final = "errors.deadletterqueue.group.enable"
REJECTED: Final = "Offset rejected by client."
DELIVERED_TOO_OFTEN: Final = "Offset delivery count exceeded the threshold."

TRIED_SECONDS: Final = 120.0
"""As long as a producer tries by default (delivery.timeout.ms)."""
_RETRY_SECONDS: Final = 0.1
_RETRY_SECONDS_MAX: Final = 5.0
_TIMEOUT_MS: Final = 10_000
_ACKS_ALL: Final = -1
_ONE_BATCH_BYTES: Final = 1
"""Read at least one batch, whatever its size: the rest of a longer read would be discarded."""
_READ_UNCOMMITTED: Final = 0
_OVERHEAD_BYTES: Final = 128
"""The approximate maximum of a batch's header and a record's own lengths."""
_FINAL: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.RECORD_LIST_TOO_LARGE,
    }
)
"""Errors that a retry cannot change."""


class TopicMaker(Protocol):
    """Creates topics."""

    async def ensure_topic(self, wanted: WantedTopic) -> None:
        """Create a topic unless it exists; raise ApiError."""


class Node(Protocol):
    """what is needed from the node."""

    config: BrokerConfig
    clock: Clock
    peers: PeerConnections
    replicas: ReplicaManager

    @property
    def controller(self) -> TopicMaker:
        """The creator of topics."""

    @property
    def metadata(self) -> MetadataImage:
        """The latest metadata image."""


class DeadLetterWriter:
    """The dead letters that one broker is writing."""

    def __init__(self, node: Node, settings_of: Callable[[str], ShareSettings]) -> None:
        self._node = node
        self._settings_of = settings_of

    async def write(self, group_id: str, source: Partition, letters: Sequence[DeadLetter]) -> bool:
        """Return True when all are durable, False if the group wants none; raise ApiError.

        An error means that they are given up; some may have been written.
        """
        loop = asyncio.get_running_loop()
        deadline, delay = loop.time() + TRIED_SECONDS, _RETRY_SECONDS
        position = letters[0].first
        while self._settings_of(group_id).dead_letter_topic:
            try:
                while position <= letters[-1].last:
                    position = await self._write_some(group_id, source, letters, position)
            except ApiError as error:
                fields = {
                    "group": group_id,
                    "source": f"{source.topic}-{source.index}",
                    "offset": position,
                    "last_offset": letters[-1].last,
                    "error": str(error),
                }
                if error.code in _FINAL or loop.time() + delay >= deadline:
                    log.error("dead letters are given up", **fields)  # noqa: TRY400 (no stack trace)
                    raise
                log.warning("dead letters are not written yet", **fields)
            else:
                return True
            await asyncio.sleep(delay)
            delay = min(2 * delay, _RETRY_SECONDS_MAX)
        return False

    async def _write_some(
        self, group_id: str, source: Partition, letters: Sequence[DeadLetter], position: int
    ) -> int:
        """Write one batch of letters from an offset on; return where the next batch begins."""
        settings = self._settings_of(group_id)
        topic = await self._topic(settings.dead_letter_topic, source)
        config = self._node.replicas.effective_config(topic.name)
        if not config[ALLOWED]:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"{topic.name} has {ALLOWED}=false")
        batch = _Batch(group_id, source, config["max.message.bytes"], self._node.clock.now_ms())
        originals = _Originals(source) if settings.copies_records else None
        for letter in letters:
            for offset in range(max(position, letter.first), letter.last + 1):
                original = None if originals is None else originals.get(offset)
                if not batch.add(letter, offset, original):
                    await self._append(topic, source.index, batch.build())
                    return offset
        if batch.records:
            await self._append(topic, source.index, batch.build())
        return letters[-1].last + 1

    async def _topic(self, name: str, source: Partition) -> TopicImage:
        values = self._node.config.values
        problem = dead_letter_topic_problem(name, values)
        if name == source.topic:
            problem = "the records come from that very topic"
        if problem is not None:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"no dead letters go to {name}: {problem}")
        if name not in self._node.metadata.topics and values[DEAD_LETTER_AUTO_CREATE]:
            await self._node.controller.ensure_topic(
                WantedTopic(
                    name=name,
                    num_partitions=values["num.partitions"],
                    replication_factor=values["default.replication.factor"],
                    configs={ALLOWED: "true"},
                )
            )
        topic = self._node.metadata.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
        return topic

    async def _append(self, topic: TopicImage, source_index: int, batch: bytes) -> None:
        """Append to the partition for the source's letters; return once it is committed."""
        index = PartitionIndex(source_index % len(topic.partitions))
        partition = topic.partitions.get(index)
        leader = NO_NODE if partition is None else partition.leader
        if leader == NO_NODE:
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic.name}-{index} has no leader")
        if leader == self._node.config.node_id:
            await self._append_here(topic.name, index, batch)
            return
        data = PartitionProduceData(index=index, records=batch)
        request = ProduceRequest(
            acks=_ACKS_ALL,
            timeout_ms=_TIMEOUT_MS,
            topic_data=[
                TopicProduceData(name=topic.name, topic_id=topic.topic_id, partition_data=[data])
            ],
        )
        try:
            response = await self._node.peers.send(leader, request, timeout_ms=2 * _TIMEOUT_MS)
        except PeerUnavailable as error:
            raise ApiError(ErrorCode.LEADER_NOT_AVAILABLE, str(error)) from error
        result = response.responses[0].partition_responses[0]
        if result.error_code != ErrorCode.NONE:
            raise ApiError(ErrorCode(result.error_code), result.error_message or "")

    async def _append_here(self, topic: str, index: int, batch: bytes) -> None:
        partition = self._node.replicas.partition(topic, index)
        info = partition.append(batch, _ACKS_ALL, self._node.clock.now_ms())
        committed = partition.wait_committed(Offset(info.last_offset + 1))
        if committed is not None:
            try:
                await asyncio.wait_for(committed, _TIMEOUT_MS / 1000)
            except TimeoutError as error:
                raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "not committed in time") from error


class _Batch:
    """Dead letters that fit into one batch."""

    def __init__(self, group_id: str, source: Partition, size_max: int, now_ms: int) -> None:
        self.records: list[NewRecord] = []
        self._group_id = group_id
        self._source = source
        self._size_max = size_max
        self._size = 0
        self._now_ms = now_ms

    def add(self, letter: DeadLetter, offset: int, original: Record | None) -> bool:
        """Add a letter; return whether it fits.

        The original's headers are not copied, as in Kafka: only the context headers are written. An
        original that is too large by itself is left out; the context tells where to find it.
        """
        headers = [
            ("__dlq.errors.topic", self._source.topic.encode()),
            ("__dlq.errors.partition", b"%d" % self._source.index),
            ("__dlq.errors.offset", b"%d" % offset),
            ("__dlq.errors.group", self._group_id.encode()),
            ("__dlq.errors.delivery.count", b"%d" % letter.count),
            (
                "__dlq.errors.message",
                (REJECTED if letter.is_rejected else DELIVERED_TOO_OFTEN).encode(),
            ),
        ]
        context = _OVERHEAD_BYTES + sum(len(name) + len(value) for name, value in headers)
        key, value = (None, None) if original is None else (original.key, original.value)
        size = context + len(key or b"") + len(value or b"")
        if size > self._size_max:
            log.warning("a dead letter is written without its record", offset=offset, bytes=size)
            key, value, size = None, None, context
        if self.records and self._size + size > self._size_max:
            return False
        self.records.append(
            NewRecord(key=key, value=value, timestamp=self._now_ms, headers=headers)
        )
        self._size += size
        return True

    def build(self) -> bytes:
        """Return the letters as a batch."""
        return bytes(build_batch(self.records))


class _Originals:
    """A partition's records, read a batch at a time."""

    def __init__(self, source: Partition) -> None:
        self._source = source
        self._read: dict[Offset, Record] = {}
        self._range = range(0)

    def get(self, offset: int) -> Record | None:
        """Return a record, or None if it is gone or damaged for good.

        Raises ApiError while a new leader's high watermark is below it (it is committed, and will
        be readable) and while the disk refuses it: a later read, or the next leader, has it.
        """
        if offset not in self._range:
            if offset >= self._source.readable_end(_READ_UNCOMMITTED):
                raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE, f"{offset} is not readable yet")
            try:
                self._read_batch(offset)
            except (ApiError, DecodeError) as error:
                if isinstance(error, ApiError) and error.code is ErrorCode.KAFKA_STORAGE_ERROR:
                    raise
                log.warning(
                    "a dead letter's record is not readable", offset=offset, error=str(error)
                )
        return self._read.get(Offset(offset))

    def _read_batch(self, offset: int) -> None:
        data: Any = self._source.read(
            offset, _ONE_BATCH_BYTES, isolation=_READ_UNCOMMITTED, at_least_one=True
        )
        for position, header in iterate_headers(data):
            if header.base_offset <= offset <= header.last_offset:
                found = {record.offset: record for record in iterate_records(data, position)}
                self._read = found
                self._range = range(header.base_offset, header.last_offset + 1)
                return
