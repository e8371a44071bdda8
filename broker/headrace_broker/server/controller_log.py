"""The metadata log on disk: `__cluster_metadata-0` in Kafka's own format.

Owns encoding, durability and the walk through the log at start. Appending returns only after fsync:
the metadata quorum never acknowledges what a power cut could take back. What the records mean is
the image's business; who may append is the driver's.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from headrace_broker.log.config import LogConfig
from headrace_broker.log.partition_log import PartitionLog
from headrace_broker.log.validation import AppendOrigin
from headrace_broker.metadata.entities import CLUSTER_METADATA_TOPIC
from headrace_broker.metadata.records import MetadataRecord, decode_record, encode_record
from headrace_broker.protocol.batch import (
    NewRecord,
    build_batch,
    iterate_records,
    parse_batch_header,
)
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import LeaderEpoch, Offset, TimestampMs
from headrace_broker.server.clock import Clock

_READ_BYTES = 8 * 1024 * 1024

# The largest batch. A decision is one batch, so that a crash keeps it whole or not at
# all; a client whose request would make more gets an error before anything is written.
BATCH_BYTES_MAX = 16 * 1024 * 1024

_CONFIG = LogConfig(
    cleanup_policy="",  # nothing is dropped but by snapshots
    max_message_bytes=BATCH_BYTES_MAX,
    # Kafka's metadata.log.segment.bytes.
    segment_bytes=1 << 30,
)


class ReplayBatch(NamedTuple):
    """The records of one batch, the offset of its last one, and its leader epoch."""

    records: list[MetadataRecord]
    last_offset: Offset
    epoch: LeaderEpoch


class MetadataLog:
    """Appends and replays metadata records. Not thread-safe: one owner at a time."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    @classmethod
    def open(cls, directory: Path, clock: Clock) -> "MetadataLog":
        """Open or create the log under `directory`; a torn tail, never acknowledged, is cut."""
        path = directory / f"{CLUSTER_METADATA_TOPIC}-0"
        path.mkdir(parents=True, exist_ok=True)
        log = PartitionLog.open(
            path, _CONFIG, clock=clock, recovery_point=Offset(0), was_clean=False
        )
        return cls(log)

    @property
    def end_offset(self) -> Offset:
        """The offset that the next record gets."""
        return Offset(self._log.log_end_offset)

    @property
    def size_bytes(self) -> int:
        """Bytes on disk."""
        return self._log.size_bytes

    def replay(self) -> Iterator[ReplayBatch]:
        """Yield every batch from the start."""
        position = Offset(self._log.log_start_offset)
        while position < self._log.log_end_offset:
            data = memoryview(
                self._log.read(
                    position, _READ_BYTES, upper_bound=self.end_offset, at_least_one=True
                )
            )
            start = 0
            while start < len(data):
                header = parse_batch_header(data, start)
                end = start + header.size_bytes
                records = [
                    decode_record(record.value)
                    for record in iterate_records(data[start:end])
                    if record.value is not None
                ]
                last = Offset(header.base_offset + header.last_offset_delta)
                yield ReplayBatch(records, last, LeaderEpoch(header.partition_leader_epoch))
                position, start = Offset(last + 1), end

    def append(
        self, batches: Sequence[bytearray], epoch: LeaderEpoch, now_ms: TimestampMs
    ) -> Offset:
        """Append batches made by `encode_batch`; all are durable on return.

        Returns the offset of the last record. Any error means that the outcome is unknown and that
        the log must not be used again.
        """
        for batch in batches:
            self._log.append_as_leader(
                memoryview(batch), epoch, now_ms=now_ms, origin=AppendOrigin.COORDINATOR
            )
        self._log.flush()
        return Offset(self._log.log_end_offset - 1)

    def close(self) -> None:
        """Close the files."""
        self._log.close()


def encode_batch(records: Sequence[MetadataRecord], now_ms: TimestampMs) -> bytearray:
    """Return the one batch that holds a decision's records; raises ApiError if it is too large."""
    batch = build_batch(
        [NewRecord(key=None, value=encode_record(record), timestamp=now_ms) for record in records]
    )
    if len(batch) > BATCH_BYTES_MAX:
        raise ApiError(
            ErrorCode.POLICY_VIOLATION,
            f"the change takes {len(batch)} bytes of metadata, at most {BATCH_BYTES_MAX} can be "
            "written at once: split the request",
        )
    return batch
