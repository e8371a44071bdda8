"""Helpers of the log layer's tests: a clock to move, batches, and a reader that checks order."""

import struct
from collections.abc import Iterator
from pathlib import Path

from headrace_broker.log.batches import Header, iterate_headers
from headrace_broker.log.compaction import Compaction
from headrace_broker.log.config import LogConfig
from headrace_broker.log.log_directory import LogDirectory
from headrace_broker.log.partition_log import AppendInfo, PartitionLog
from headrace_broker.log.verification import TRUSTED
from headrace_broker.protocol.batch_header import LEADER_EPOCH_POSITION
from headrace_broker.protocol.types import TimestampMs
from support.batches import BatchFields, NewRecord, build_batch

START_MS = 1_700_000_000_000


class ManualClock:
    """A clock that moves when a test moves it."""

    def __init__(self) -> None:
        self.time_ms = START_MS

    def now_ms(self) -> TimestampMs:
        """Return the test's time."""
        return TimestampMs(self.time_ms)


def batch_of(*values: bytes | None, key: bytes | None = None, **fields: int) -> bytearray:
    """Build one batch with a record per value."""
    fields.setdefault("base_timestamp", START_MS)
    records = [NewRecord(value=value, key=key) for value in values]
    return bytearray(build_batch(records, BatchFields(**fields)))


def marker(producer_id: int, epoch: int, *, commit: bool, coordinator_epoch: int = 0) -> bytearray:
    """Build the control batch that ends a transaction."""
    record = NewRecord(
        key=struct.pack(">hh", 0, int(commit)), value=struct.pack(">hi", 0, coordinator_epoch)
    )
    fields = BatchFields(
        attributes=0x30, producer_id=producer_id, producer_epoch=epoch, base_timestamp=START_MS
    )
    return bytearray(build_batch([record], fields))


def append(log: PartitionLog, batch: bytes | bytearray, epoch: int = 0) -> AppendInfo:
    """Append as leader at the test's start time."""
    return log.append_as_leader(batch, epoch, now_ms=START_MS, verification=TRUSTED)


def headers_from(log: PartitionLog, offset: int, max_bytes: int = 1 << 20) -> Iterator[Header]:
    """Read batch headers from an offset to the end, as a consumer would."""
    end = log.log_end_offset
    while offset < end:
        data = log.read(offset, max_bytes, upper_bound=end, at_least_one=True)
        if not data:
            return
        for _, header in iterate_headers(data):
            yield header
            offset = header.last_offset + 1


def content(log: PartitionLog) -> list[bytes]:
    """Return every batch's bytes from the log's start."""
    offset, end, found = int(log.log_start_offset), log.log_end_offset, []
    while offset < end:
        data = log.read(offset, 1, upper_bound=end, at_least_one=True)
        if not data:
            break
        found.append(bytes(data))
        offset = next(iterate_headers(data))[1].last_offset + 1
    return found


def open_at(path: Path, clock: ManualClock, **settings: object) -> PartitionLog:
    """Open a log as after a kill: nothing is taken on trust."""
    return PartitionLog.open(path, LogConfig(**settings), clock=clock, was_clean=False)


def open_logs(directory: LogDirectory, config: LogConfig) -> None:
    """Open every partition that has a folder, as the metadata would ask for."""
    directory.remove_deleted()
    for topic, partition in sorted(directory.partition_folders()):
        recovery = directory.recovery(topic, partition, config)
        recovered = None if recovery is None else recovery()
        directory.create(topic, partition, config, recovered=recovered)


def compact(log: PartitionLog, now_ms: int, *, is_everywhere: bool = True) -> bool:
    """Clean what is dirty enough; return whether anything was."""
    compaction = Compaction.begin(log, now_ms, is_everywhere=is_everywhere)
    if compaction is None:
        return False
    compaction.run()
    return compaction.finish()


def write_epoch(log: PartitionLog, offset: int, epoch: int) -> None:
    """Change the leader epoch of a batch on disk, behind the log's back."""
    segment = log.segments.floor(offset)
    if segment is None:
        raise ValueError(offset)
    with segment.path.open("r+b") as file:
        file.seek(segment.position_of(offset) + LEADER_EPOCH_POSITION)
        file.write(epoch.to_bytes(4, "big"))
