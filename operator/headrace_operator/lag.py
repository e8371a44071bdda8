"""How long ago a group's oldest unread record was written. Blocking and read-only.

Kafka's admin protocol can look up the offset at a timestamp, but not the timestamp at an offset:
only a fetch returns it. Each leader gets one request, for one batch of each partition with lag.

The oldest unread record of a partition is the first one in the log at or after the committed
offset. So if retention or compaction removed records, the next remaining one counts. Transaction
markers are not records: a group with only markers ahead of it has caught up. Records of open or
aborted transactions count until the group has passed them. Partitions without a committed offset
have no lag, as in the broker's own metric.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace_operator.plan import ObservedGroup, TopicPartition

__all__ = ["lag_seconds", "oldest_unread"]

#: A producer's default batch. A larger batch is returned too, one in each request (KIP-74).
PARTITION_BYTES = 20_000
RESPONSE_BYTES = 4_000_000
#: Every request makes progress in one partition at least; a fetch that takes longer is given up.
ROUNDS_MAX = 100
#: Version 10 is the first with zstd; from 13 on topics have ids instead of names.
FETCH_VERSION_MIN, FETCH_VERSION_MAX = 4, 12
MAGIC_V2 = 2
LOG_APPEND_TIME = 1


def oldest_unread(
    admin: Any, groups: Mapping[str, ObservedGroup]
) -> dict[str, dict[TopicPartition, int]]:
    """Return when the oldest unread record was written, for each group's partitions with lag.

    Milliseconds since 1970. Partitions without a leader, or with only markers left, are left out.
    Raises `kafka.errors.KafkaError` if no broker answers.
    """
    behind = {
        (key, group.offsets[key])
        for group in groups.values()
        for key, records in group.lag.items()
        if records
    }
    found: dict[tuple[TopicPartition, int], int] = {}
    # Groups with different offsets in a partition need separate requests.
    while behind:
        positions = dict(behind)
        for key, timestamp_ms in _read_timestamps(admin, positions).items():
            found[key, positions[key]] = timestamp_ms
        behind -= set(positions.items())
    return {
        group_id: {
            key: found[key, offset]
            for key, offset in group.offsets.items()
            if (key, offset) in found
        }
        for group_id, group in groups.items()
    }


def lag_seconds(
    group: ObservedGroup, oldest: Mapping[TopicPartition, int], *, now_ms: int
) -> int | None:
    """Return the age of the oldest record of all partitions; 0: caught up, None: not known."""
    if not group.offsets:
        return None
    if not oldest:
        return 0
    return max(0, now_ms - min(oldest.values())) // 1000


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """The result of a fetch at a position: a record's time, another position, or nothing more."""

    timestamp_ms: int | None = None
    go_on_at: int | None = None
    is_gone: bool = False


def _read_timestamps(
    admin: Any, positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the timestamp of the first record at or after each position."""
    found: dict[TopicPartition, int] = {}
    left = dict(positions)
    leaders = _leaders(admin, left)
    for _ in range(ROUNDS_MAX):
        answers = _fetch_all(admin, left, leaders)
        answers |= _starts(admin, [key for key, answer in answers.items() if answer.is_gone])
        for key, answer in answers.items():
            if answer.timestamp_ms is not None:
                found[key] = answer.timestamp_ms
            if answer.go_on_at is None:
                del left[key]
            else:
                left[key] = answer.go_on_at
        if not left or not answers:
            break
        # Partitions without data come first next time: the first one gets its batch of any size.
        left = {key: left[key] for key in sorted(left, key=lambda key: key in answers)}
    return found


def _leaders(admin: Any, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    names = sorted({topic for topic, _ in partitions})
    return {
        (topic["name"], entry["partition_index"]): entry["leader_id"]
        for topic in admin.describe_topics(names)
        for entry in topic["partitions"]
        if entry["leader_id"] >= 0
    }


def _fetch_all(
    admin: Any, positions: Mapping[TopicPartition, int], leaders: Mapping[TopicPartition, int]
) -> dict[TopicPartition, _Answer]:
    by_leader: dict[int, dict[TopicPartition, int]] = {}
    for key, position in positions.items():
        if key in leaders:
            by_leader.setdefault(leaders[key], {})[key] = position
    return {
        key: answer
        for leader, mine in by_leader.items()
        for key, answer in _fetch(admin, leader, mine).items()
    }


def _fetch(
    admin: Any, leader: int, positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, _Answer]:
    """Fetch a batch for as many partitions as fit into one response. The others are left out."""
    from kafka.errors import OffsetOutOfRangeError

    # The admin client has no fetch; this is its connection to the leader.
    manager = admin._manager  # noqa: SLF001

    async def send() -> Any:
        return await manager.send(_request(positions), node_id=leader)

    answers = {}
    for topic in manager.run(send).responses:
        for entry in topic.partitions:
            key = (topic.topic, entry.partition_index)
            if entry.error_code == OffsetOutOfRangeError.errno:
                answers[key] = _Answer(is_gone=True)
            elif entry.error_code:
                answers[key] = _Answer()
            elif entry.records or positions[key] >= entry.high_watermark:
                answers[key] = _first_record(entry.records, positions[key], entry.high_watermark)
    return answers


def _starts(admin: Any, gone: Iterable[TopicPartition]) -> dict[TopicPartition, _Answer]:
    """Continue where partitions now begin: retention removed the records in between."""
    from kafka import TopicPartition as ClientPartition
    from kafka.admin import OffsetSpec

    asked = {ClientPartition(*key): OffsetSpec.EARLIEST for key in gone}
    found = admin.list_partition_offsets(asked) if asked else {}
    return {
        (partition.topic, partition.partition): _Answer(go_on_at=answer.offset)
        for partition, answer in found.items()
    }


def _request(positions: Mapping[TopicPartition, int]) -> Any:
    from kafka.protocol.consumer import FetchRequest

    topics: dict[str, list[Any]] = {}
    for (name, index), position in positions.items():
        partition = FetchRequest.FetchTopic.FetchPartition(
            partition=index, fetch_offset=position, partition_max_bytes=PARTITION_BYTES
        )
        topics.setdefault(name, []).append(partition)
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=RESPONSE_BYTES,
        topics=[
            FetchRequest.FetchTopic(topic=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
        forgotten_topics_data=[],
        min_version=FETCH_VERSION_MIN,
        max_version=FETCH_VERSION_MAX,
    )


def _first_record(records: bytes | None, position: int, end: int) -> _Answer:
    from kafka.record import MemoryRecords

    for batch in MemoryRecords(bytes(records or b"")):
        if batch.magic < MAGIC_V2:
            # Older than Kafka 0.11: such a batch does not tell when its records were written.
            return _Answer()
        if batch.is_control_batch or batch.last_offset < position:
            position = max(position, batch.next_offset)
            continue
        timestamp_ms = _timestamp_in(batch, position)
        return _Answer(timestamp_ms=timestamp_ms if timestamp_ms >= 0 else None)
    return _Answer(go_on_at=position if position < end else None)


def _timestamp_in(batch: Any, position: int) -> int:
    """Return when the first record at or after an offset of this batch was written.

    A compressed batch is never decompressed here, as it might expand without limit: its first
    record stands for the others.
    """
    if batch.timestamp_type == LOG_APPEND_TIME:
        return int(batch.max_timestamp)
    if batch.compression_type == 0 and batch.base_offset < position:
        for record in batch:
            if record.offset >= position:
                return int(record.timestamp)
    return int(batch.first_timestamp)
