"""What the transaction coordinator needs from a partition of `__transaction_state`."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Final, Protocol

from headrace_broker.coordinator.transactions.records import (
    TransactionRecord,
    read_record,
    write_record,
)
from headrace_broker.coordinator.transactions.transaction import TransactionVersion
from headrace_broker.log.batches import iterate_headers
from headrace_broker.log.validation import AppendOrigin
from headrace_broker.protocol.batch import NewRecord, build_batch, iterate_records
from headrace_broker.protocol.types import LeaderEpoch, Offset, TimestampMs
from headrace_broker.server.clock import Clock
from headrace_broker.server.partitions.elections import read_to_end, wait_all_committed
from headrace_broker.server.partitions.partition import Partition
from headrace_broker.server.partitions.waiting import Acknowledge

_ACKS_ALL: Final = -1


class StateLog(Protocol):
    """One partition of `__transaction_state`, in one leader epoch."""

    coordinator_epoch: LeaderEpoch

    def append(self, batch: bytearray, acknowledge: Acknowledge) -> None:
        """Append at once; call `acknowledge` when the batch is committed or leadership is lost.

        Raises ApiError with nothing appended.
        """

    def read_all(self) -> AsyncIterator[bytes]:
        """Yield everything appended so far, as runs of whole batches."""
        ...

    async def wait_committed(self) -> None:
        """Return when everything appended so far is committed; raise ApiError if it is not."""


class PartitionStateLog:
    """The adapter of a partition that this broker leads."""

    def __init__(self, partition: Partition, clock: Clock, load_bytes: int) -> None:
        """`load_bytes`: how many bytes are read at once."""
        self.coordinator_epoch = partition.leader_epoch
        self._load_bytes = load_bytes
        self._partition = partition
        self._clock = clock

    def append(self, batch: bytearray, acknowledge: Acknowledge) -> None:
        """Append as the leader with acks=all."""
        partition = self._partition
        partition.check_leader(self.coordinator_epoch)
        now_ms = self._clock.now_ms()
        info = partition.append(batch, _ACKS_ALL, now_ms, origin=AppendOrigin.COORDINATOR)
        if partition.high_watermark > info.last_offset:
            # Not synchronously: the caller of `append` finishes first.
            asyncio.get_running_loop().call_soon(acknowledge, None)
        else:
            partition.when_committed(Offset(info.last_offset + 1), acknowledge)

    def read_all(self) -> AsyncIterator[bytes]:
        """Read up to the present end of the log."""
        return read_to_end(self._partition, self._load_bytes)

    async def wait_committed(self) -> None:
        """Wait for the commit: uncommitted records may be lost; their markers must not be sent."""
        await wait_all_committed(self._partition, self.coordinator_epoch)


def encode_record(
    record: TransactionRecord, version: TransactionVersion, now_ms: TimestampMs
) -> bytearray:
    """Return a batch with one record."""
    key, value = write_record(record, version)
    return build_batch([NewRecord(key=key, value=value, timestamp=now_ms)])


def decode_records(chunk: bytes) -> Iterator[TransactionRecord]:
    """Yield the records of a run of whole batches."""
    for position, header in iterate_headers(chunk):
        if header.is_control:
            continue
        for record in iterate_records(chunk, position):
            if record.key is not None:
                found = read_record(record.key, record.value)
                if found is not None:
                    yield found
