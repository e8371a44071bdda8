"""Encodes decisions as batches of the metadata log, and decodes batches to records.

Owns the encoding only: `raft_log.py` stores batches, and the image gives records their meaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headrace_broker.metadata.records import MetadataRecord, decode_record, encode_record
from headrace_broker.protocol.batch import (
    NewRecord,
    build_batch,
    iterate_batches,
    iterate_records,
)
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.types import Buffer, LeaderEpoch, Offset, TimestampMs
from headrace_broker.server.quorum.raft_log import BATCH_BYTES_MAX

__all__ = ["BATCH_BYTES_MAX", "ReplayBatch", "decode_batches", "encode_batch", "encode_batches"]

# Records in one batch of a snapshot.
_SNAPSHOT_BATCH_RECORDS = 1024


class ReplayBatch(NamedTuple):
    """The records of one batch (none of a control batch), its last offset, and its epoch."""

    records: list[MetadataRecord]
    last_offset: Offset
    epoch: LeaderEpoch


def decode_batches(data: Buffer) -> Iterator[ReplayBatch]:
    """Yield every whole batch in a piece of the log or of a snapshot; raises DecodeError."""
    for position, header in iterate_batches(data):
        records: list[MetadataRecord] = []
        if not header.is_control:
            records = [
                decode_record(record.value)
                for record in iterate_records(data, position)
                if record.value is not None
            ]
        yield ReplayBatch(
            records,
            Offset(header.base_offset + header.last_offset_delta),
            LeaderEpoch(header.partition_leader_epoch),
        )


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


def encode_batches(records: Sequence[MetadataRecord], now_ms: TimestampMs) -> list[bytearray]:
    """Return moderately sized batches that together hold a snapshot's records."""
    return [
        encode_batch(records[start : start + _SNAPSHOT_BATCH_RECORDS], now_ms)
        for start in range(0, len(records), _SNAPSHOT_BATCH_RECORDS)
    ]
