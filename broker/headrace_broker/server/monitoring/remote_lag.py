"""Log ends from other brokers, for partitions that this broker's groups read.

A group's coordinator may have no replica of the partitions that the group reads; without this
module their lag would be missing. Leaders are asked at scrape time, so nothing is spent on metrics
that nobody reads. A value is kept until a later answer: the record at an offset never changes.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace_broker.protocol.batch import (
    LOG_APPEND_TIME_FLAG,
    iterate_records,
    parse_batch_header,
)
from headrace_broker.protocol.errors import DecodeError, ErrorCode
from headrace_broker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace_broker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from headrace_broker.protocol.types import NodeId
from headrace_broker.server.peers.peers import Lane, PeerUnavailable

if TYPE_CHECKING:
    from headrace_broker.server.monitoring.node import Node

_LATEST, _EARLIEST = -1, -2
_TIMEOUT_MS = 1000
# Each look-up of a record's time fetches its batch, so their number per scrape is limited: the
# partitions furthest behind come first, and known values are not asked for again.
_LOOKUPS_MAX = 200

Key = tuple[str, int]


class Ends(NamedTuple):
    """Where a log begins and up to where consumers may read it."""

    log_start_offset: int
    high_watermark: int


class RemoteLag:
    """The ends of partitions led by other brokers, and the timestamps of records at offsets."""

    def __init__(self, broker: Node) -> None:
        self._broker = broker
        self._ends: dict[Key, Ends] = {}
        self._times: dict[tuple[str, int, int], int] = {}
        self._refreshing: asyncio.Future[None] | None = None

    def ends(self, topic: str, partition: int) -> Ends | None:
        """Return the leader's last answer, or None."""
        return self._ends.get((topic, partition))

    def timestamp(self, topic: str, partition: int, offset: int) -> int | None:
        """Return the timestamp of the record at an offset in ms, or None if it is not known."""
        return self._times.get((topic, partition, offset))

    async def refresh(self, committed: Iterable[tuple[str, int, int]]) -> None:
        """Ask the leaders about (topic, partition, committed offset); takes a second at most.

        Two simultaneous scrapes share one round of requests.
        """
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.ensure_future(self._refresh(list(committed)))
        await asyncio.wait({self._refreshing}, timeout=_TIMEOUT_MS / 1000)

    async def _refresh(self, committed: list[tuple[str, int, int]]) -> None:
        wanted = {(topic, index) for topic, index, _ in committed}
        self._ends = {key: ends for key, ends in self._ends.items() if key in wanted}
        if not wanted:
            self._times.clear()
            return
        by_leader: dict[NodeId, list[Key]] = defaultdict(list)
        for key in wanted:
            leader = self._leader(*key)
            if leader is not None:
                by_leader[leader].append(key)
        await asyncio.gather(*(self._ask_ends(*item) for item in by_leader.items()))
        behind: dict[tuple[str, int, int], int] = {}
        for topic, index, offset in committed:
            ends = self._ends.get((topic, index))
            if ends is not None and offset < ends.high_watermark:
                at = max(offset, ends.log_start_offset)
                behind[topic, index, at] = ends.high_watermark - at
        self._times = {key: time for key, time in self._times.items() if key in behind}
        unknown = sorted(behind.keys() - self._times.keys(), key=lambda key: -behind[key])
        await asyncio.gather(*(self._ask_time(*key) for key in unknown[:_LOOKUPS_MAX]))

    def _leader(self, topic: str, index: int) -> NodeId | None:
        image = self._broker.metadata.topics.get(topic)
        partition = None if image is None else image.partitions.get(index)  # type: ignore[call-overload]  # a PartitionIndex is an int
        if partition is None or partition.leader in {-1, self._broker.config.node_id}:
            return None
        return NodeId(partition.leader)

    async def _ask_ends(self, leader: NodeId, keys: list[Key]) -> None:
        earliest = await self._offsets(leader, keys, _EARLIEST)
        latest = await self._offsets(leader, keys, _LATEST)
        for key in earliest.keys() & latest.keys():
            self._ends[key] = Ends(earliest[key], latest[key])

    async def _offsets(self, leader: NodeId, keys: list[Key], at: int) -> Mapping[Key, int]:
        topics: dict[str, ListOffsetsTopic] = {}
        for name, index in sorted(keys):
            topic = topics.setdefault(name, ListOffsetsTopic(name=name, partitions=[]))
            topic.partitions.append(ListOffsetsPartition(partition_index=index, timestamp=at))
        response = await self._send(
            leader,
            ListOffsetsRequest(replica_id=-1, topics=list(topics.values()), timeout_ms=_TIMEOUT_MS),
        )
        return {
            (topic.name, partition.partition_index): partition.offset
            for topic in ([] if response is None else response.topics)
            for partition in topic.partitions
            if partition.error_code == ErrorCode.NONE
        }

    async def _ask_time(self, topic: str, index: int, offset: int) -> None:
        leader = self._leader(topic, index)
        image = self._broker.metadata.topics.get(topic)
        if leader is None or image is None:
            return
        wanted = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1)
        response = await self._send(
            leader,
            FetchRequest(
                max_bytes=1,
                topics=[FetchTopic(topic=topic, topic_id=image.topic_id, partitions=[wanted])],
            ),
        )
        for answer in [] if response is None else response.responses:
            for data in answer.partitions:
                if data.error_code == ErrorCode.NONE and data.records:
                    time = timestamp_in(memoryview(data.records), offset)
                    self._times[topic, index, offset] = time

    async def _send(self, leader: NodeId, request: Any) -> Any | None:
        try:
            return await self._broker.peers.send(
                leader, request, timeout_ms=_TIMEOUT_MS, lane=Lane.REQUEST
            )
        except PeerUnavailable:
            return None


def timestamp_in(batch: memoryview, offset: int) -> int:
    """Return the timestamp, in ms, of the first record at or after `offset`, or -1."""
    if not batch:
        return -1
    header = parse_batch_header(batch, 0)
    if header.attributes & LOG_APPEND_TIME_FLAG:
        return header.max_timestamp
    if header.base_offset >= offset:
        return header.base_timestamp
    try:
        for record in iterate_records(batch):
            if record.offset >= offset:
                return record.timestamp
    except DecodeError:
        # A corrupt batch (or a decompression bomb) must not break the metrics of everything else.
        return header.base_timestamp
    return header.max_timestamp
