"""What the group coordinator needs from a partition of `__consumer_offsets`, and its adapter."""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Final, Protocol

from headrace_broker.log.markers import Marker
from headrace_broker.log.validation import AppendOrigin
from headrace_broker.log.verification import Verification
from headrace_broker.protocol.batch import HEADER_SIZE, NewRecord, build_batch
from headrace_broker.protocol.types import Offset, TimestampMs
from headrace_broker.server.clock import Clock
from headrace_broker.server.partitions.elections import read_to_end
from headrace_broker.server.partitions.marker_writes import write_marker
from headrace_broker.server.partitions.partition import Partition

_ACKS_ALL: Final = -1
_RECORD_OVERHEAD_BYTES: Final = 32  # the lengths and deltas of a record, at most

EncodedRecord = tuple[bytes, bytes | None]
"""The key and the value of a record."""


class OffsetsLog(Protocol):
    """One partition of `__consumer_offsets`, as its coordinator sees it."""

    @property
    def end_offset(self) -> Offset:
        """The log's end."""
        ...

    @property
    def record_bytes_max(self) -> int:
        """How large the records of one batch may be together."""
        ...

    async def append(self, batch: bytes) -> None:
        """Append one batch and return once it is committed.

        After an ApiError the batch is not in the log, or it is unknown whether it is.
        """

    def append_transactional(self, batch: bytearray, verification: Verification) -> Offset:
        """Append a transaction's batch at once; return its end. Raises ApiError if refused."""

    def append_marker(self, marker: Marker) -> Offset:
        """Append a marker at once; return its end. Raises ApiError with nothing appended."""

    async def wait_committed(self, end: Offset) -> None:
        """Return when all below `end` is committed; raise ApiError if that cannot be known."""

    def read_all(self) -> AsyncIterator[bytes]:
        """Yield everything appended so far, from the log's start, as runs of whole batches."""
        ...


class PartitionOffsetsLog:
    """The adapter of a partition that this broker leads."""

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self._partition = partition
        self._clock = clock

    @property
    def end_offset(self) -> Offset:
        """The log's end."""
        return self._partition.log.log_end_offset

    @property
    def record_bytes_max(self) -> int:
        """What `max.message.bytes` leaves for records."""
        return self._partition.log.config.max_message_bytes - HEADER_SIZE

    async def append(self, batch: bytes) -> None:
        """Append as the leader with acks=all, and wait for the high watermark."""
        info = self._partition.append(batch, _ACKS_ALL, self._clock.now_ms())
        await self.wait_committed(Offset(info.last_offset + 1))

    def append_transactional(self, batch: bytearray, verification: Verification) -> Offset:
        """Append as the leader, unless the producer's transaction is no longer open."""
        now_ms, origin = self._clock.now_ms(), AppendOrigin.COORDINATOR
        info = self._partition.append(batch, _ACKS_ALL, now_ms, verification, origin)
        return Offset(info.last_offset + 1)

    def append_marker(self, marker: Marker) -> Offset:
        """Append as the leader, unless the marker is in the log already."""
        return write_marker(self._partition, marker, self._clock.now_ms())

    async def wait_committed(self, end: Offset) -> None:
        """Wait for the high watermark."""
        committed = self._partition.wait_committed(end)
        if committed is not None:
            await committed

    def read_all(self) -> AsyncIterator[bytes]:
        """Read up to the present end of the log."""
        return read_to_end(self._partition)


def record_bytes(record: EncodedRecord) -> int:
    """Return how large a record is in a batch, at most."""
    key, value = record
    return len(key) + len(value or b"") + _RECORD_OVERHEAD_BYTES


def encode_batches(
    units: Iterable[Sequence[EncodedRecord]], now_ms: TimestampMs, size_max: int
) -> Iterator[bytes]:
    """Yield the records in order, as batches of at most `size_max` bytes.

    Records of one decision stay in one batch: the next coordinator sees all of them or none. Only a
    decision that fits into no batch is split, and replay can handle a part.
    """
    waiting: list[NewRecord] = []
    size = 0
    for unit in units:
        sizes = list(map(record_bytes, unit))
        for place, (key, value) in enumerate(unit):
            needed = sum(sizes) if place == 0 and sum(sizes) <= size_max else sizes[place]
            if waiting and size + needed > size_max:
                yield bytes(build_batch(waiting))
                waiting, size = [], 0
            size += sizes[place]
            waiting.append(NewRecord(key=key, value=value, timestamp=now_ms))
    if waiting:
        yield bytes(build_batch(waiting))
