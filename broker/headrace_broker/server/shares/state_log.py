"""What the share coordinator needs from a partition of `__share_group_state`, and its adapter."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final, Protocol

from headrace_broker.coordinator.share_state.records import (
    ShareRecord,
    read_record,
    write_record,
)
from headrace_broker.log.batches import iterate_headers
from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.log.validation import AppendOrigin
from headrace_broker.protocol.batch import NewRecord, build_batch, iterate_records
from headrace_broker.protocol.types import LeaderEpoch, Offset, TimestampMs
from headrace_broker.server.clock import Clock
from headrace_broker.server.partitions.elections import read_to_end, wait_all_committed
from headrace_broker.server.partitions.partition import Partition

_ACKS_ALL: Final = -1


class ShareStateLog(Protocol):
    """One partition of `__share_group_state`, in one leader epoch."""

    @property
    def end_offset(self) -> int:
        """The offset of the next record."""
        ...

    @property
    def is_committed(self) -> bool:
        """Whether the whole log is committed."""
        ...

    async def append(self, batch: bytes) -> int:
        """Append one batch; return its first offset once it is committed. Raises ApiError."""
        ...

    def read_all(self) -> AsyncIterator[bytes]:
        """Yield everything appended so far, as runs of whole batches."""
        ...

    async def wait_committed(self) -> None:
        """Return once everything appended so far is committed. Raises ApiError."""

    def delete_below(self, offset: int) -> None:
        """Delete records that are no longer needed. Raises ApiError."""


class PartitionShareStateLog:
    """The adapter of a partition that this broker leads."""

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self._partition = partition
        self._epoch: LeaderEpoch = partition.leader_epoch
        self._clock = clock

    @property
    def end_offset(self) -> int:
        """The log's end."""
        return self._partition.log.log_end_offset

    @property
    def is_committed(self) -> bool:
        """Whether the high watermark is at the log's end."""
        return self._partition.high_watermark >= self._partition.log.log_end_offset

    async def append(self, batch: bytes) -> int:
        """Append as the leader with acks=all, and wait for the high watermark."""
        partition = self._partition
        partition.check_leader(self._epoch)
        now_ms = self._clock.now_ms()
        info = partition.append(batch, _ACKS_ALL, now_ms, origin=AppendOrigin.COORDINATOR)
        committed = partition.wait_committed(Offset(info.last_offset + 1))
        if committed is not None:
            await committed
        return info.first_offset

    def read_all(self) -> AsyncIterator[bytes]:
        """Read up to the present end of the log."""
        return read_to_end(self._partition)

    async def wait_committed(self) -> None:
        """Wait for the high watermark."""
        await wait_all_committed(self._partition, self._epoch)

    def delete_below(self, offset: int) -> None:
        """Move the log start offset, here and at the followers."""
        partition = self._partition
        partition.check_leader(self._epoch)
        before = Offset(min(offset, partition.high_watermark))
        if before <= partition.log.log_start_offset:
            return
        try:
            partition.log.delete_records_before(before)
        except LogDirectoryFailure as failure:
            raise partition.directory_failed(failure) from failure
        for fetch in partition.follower_fetches.values():
            fetch.changed()


def encode_units(
    units: Sequence[Sequence[ShareRecord]], now_ms: TimestampMs, size_max: int
) -> Iterator[tuple[list[ShareRecord], bytes]]:
    """Yield records in order, as batches of about `size_max` bytes, each with its records."""
    taken: list[ShareRecord] = []
    encoded: list[NewRecord] = []
    size = 0
    for record in (record for unit in units for record in unit):
        key, value = write_record(record)
        if encoded and size + len(key) + len(value or b"") > size_max:
            yield taken, bytes(build_batch(encoded))
            taken, encoded, size = [], [], 0
        taken.append(record)
        encoded.append(NewRecord(key=key, value=value, timestamp=now_ms))
        size += len(key) + len(value or b"")
    if encoded:
        yield taken, bytes(build_batch(encoded))


def decode_records(chunk: bytes) -> Iterator[tuple[int, ShareRecord]]:
    """Yield the records of a run of whole batches with their offsets."""
    for position, header in iterate_headers(chunk):
        if header.is_control:
            continue
        for record in iterate_records(chunk, position):
            if record.key is not None:
                found = read_record(record.key, record.value)
                if found is not None:
                    yield record.offset, found
