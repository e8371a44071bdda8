"""What the group coordinator needs of a partition of `__consumer_offsets`, and its adapter."""

from collections.abc import AsyncIterator, Iterator
from typing import Final, Protocol

from headrace_broker.coordinator.records import CoordinatorRecord, read_record, write_record
from headrace_broker.log.batches import iterate_headers
from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.protocol.batch import NewRecord, build_batch, iterate_records
from headrace_broker.protocol.types import Offset, TimestampMs
from headrace_broker.server.clock import Clock
from headrace_broker.server.partition import ANY_EPOCH, Partition

_ACKS_ALL: Final = -1
_CHUNK_BYTES: Final = 1024 * 1024
_RECORD_OVERHEAD_BYTES: Final = 32  # the lengths and deltas of a record, at most


class OffsetsLog(Protocol):
    """One partition of `__consumer_offsets`, as its coordinator sees it."""

    async def append(self, batch: bytes) -> None:
        """Append one batch and return once it is committed.

        An ApiError means that the batch is not, or perhaps not, in the log.
        """

    def read_all(self) -> AsyncIterator[bytes]:
        """Yield everything appended so far, from the log's start, as runs of whole batches."""
        ...


class PartitionOffsetsLog:
    """The adapter of a partition that this broker leads."""

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self._partition = partition
        self._clock = clock

    async def append(self, batch: bytes) -> None:
        """Append as the leader and wait for the high watermark: acks=all, whoever asked."""
        info = self._partition.append(batch, _ACKS_ALL, self._clock.now_ms())
        committed = self._partition.wait_committed(Offset(info.last_offset + 1))
        if committed is not None:
            await committed

    async def read_all(self) -> AsyncIterator[bytes]:
        """Read up to the log's end as it stands now, as Kafka's coordinators do.

        A new leader's high watermark may still lie below what the former leader acknowledged;
        what is above it here is committed or this broker leads no more.
        """
        self._partition.check_leader(ANY_EPOCH)
        log = self._partition.log
        position, end = Offset(log.log_start_offset), log.log_end_offset
        while position < end:
            try:
                chunk = bytes(log.read(position, _CHUNK_BYTES, upper_bound=end, at_least_one=True))
            except LogDirectoryFailure as failure:
                raise self._partition.directory_failed(failure) from failure
            for _, header in iterate_headers(chunk):
                position = header.next_offset
            if not chunk:
                return
            yield chunk


def encode_batches(
    records: list[CoordinatorRecord], now_ms: TimestampMs, size_max: int
) -> Iterator[bytes]:
    """Yield the records in order, as batches of at most `size_max` bytes."""
    waiting: list[NewRecord] = []
    size = 0
    for record in records:
        key, value = write_record(record)
        record_size = len(key) + len(value or b"") + _RECORD_OVERHEAD_BYTES
        if waiting and size + record_size > size_max:
            yield bytes(build_batch(waiting))
            waiting, size = [], 0
        size += record_size
        waiting.append(NewRecord(key=key, value=value, timestamp=now_ms))
    if waiting:
        yield bytes(build_batch(waiting))


def decode_batches(chunk: bytes) -> Iterator[CoordinatorRecord]:
    """Yield the records of a run of whole batches that belong to this coordinator."""
    for position, header in iterate_headers(chunk):
        if header.is_control:
            continue
        for record in iterate_records(chunk, position):
            if record.key is not None:
                found = read_record(record.key, record.value)
                if found is not None:
                    yield found
