"""`.snapshot` files: producer states at a segment's base offset or at the log's end.

Owns Kafka's ProducerSnapshot format, version 1 (int16 version, uint32 CRC-32C, entries). Kafka
keeps only the newest batch of each producer. Here each remembered batch has its own entry, oldest
first, so that a retry is still recognised after a restart. Kafka's readers use the last entry of a
producer id, which is the one that Kafka would have written.
"""

from collections.abc import Iterable
from pathlib import Path
from struct import Struct, error, pack, unpack_from
from typing import Final

import structlog
from crc32c import crc32c

from headrace_broker.log.files import failing_the_directory, read_file, remove_quietly, replace_file
from headrace_broker.log.producer_state import (
    NO_OFFSET,
    NO_SEQUENCE,
    RETAINED_BATCHES,
    BatchMetadata,
    ProducerState,
    ProducerStates,
)

SNAPSHOT_SUFFIX: Final = ".snapshot"
_VERSION: Final = 1
_CRC_POSITION: Final = 2
_ENTRIES_POSITION: Final = 6
_ENTRY: Final = Struct(">qhiqiqiq")
_NO_BATCH: Final = BatchMetadata(NO_SEQUENCE, NO_OFFSET, 0, -1)
_log = structlog.get_logger(__name__)


def snapshot_path(directory: Path, offset: int) -> Path:
    """The path of the snapshot of the states before `offset`."""
    return directory / f"{offset:020d}{SNAPSHOT_SUFFIX}"


def write_snapshot(
    directory: Path, offset: int, states: ProducerStates, *, durable: bool = False
) -> None:
    """Write the states before `offset`."""
    replace_file(snapshot_path(directory, offset), encode_snapshot(states), durable=durable)


def encode_snapshot(states: ProducerStates) -> bytes:
    """Encode the states as Kafka's ProducerSnapshot."""
    entries = [
        _ENTRY.pack(
            producer_id,
            state.epoch,
            batch.last_sequence,
            batch.last_offset,
            batch.offset_delta,
            batch.timestamp if batch is not _NO_BATCH else state.last_timestamp,
            state.coordinator_epoch,
            state.txn_first_offset,
        )
        for producer_id, state in states.items()
        for batch in (state.batches or [_NO_BATCH])
    ]
    body = pack(">i", len(entries)) + b"".join(entries)
    return pack(">hI", _VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> ProducerStates:
    """Decode a snapshot; raises ValueError if it is damaged."""
    try:
        version, crc = unpack_from(">hI", data, 0)
        (count,) = unpack_from(">i", data, _ENTRIES_POSITION)
    except error as cause:
        raise ValueError("too short") from cause
    if version != _VERSION:
        raise ValueError(f"version {version} is unknown")
    if crc != crc32c(data[_ENTRIES_POSITION:]):
        raise ValueError("checksum differs")
    if len(data) != _ENTRIES_POSITION + 4 + count * _ENTRY.size:
        raise ValueError(f"{len(data)} bytes do not hold {count} entries")
    states = ProducerStates()
    for fields in _ENTRY.iter_unpack(data[_ENTRIES_POSITION + 4 :]):
        _adopt_entry(states, fields)
    return states


def _adopt_entry(states: ProducerStates, fields: tuple[int, ...]) -> None:
    producer_id, epoch, sequence, last_offset, delta, timestamp, coordinator, txn_first = fields
    known = states.get(producer_id)
    state = ProducerState(epoch, known.batches if known is not None else [])
    state.coordinator_epoch, state.txn_first_offset = coordinator, txn_first
    state.last_timestamp = timestamp
    if sequence >= 0:
        state.batches.append(BatchMetadata(sequence, last_offset, delta, timestamp))
        del state.batches[:-RETAINED_BATCHES]
    states.put(producer_id, state)


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    """Return the offsets of the snapshots among file names, ascending."""
    stems = (name.removesuffix(SNAPSHOT_SUFFIX) for name in names if name.endswith(SNAPSHOT_SUFFIX))
    return sorted(int(stem) for stem in stems if stem.isdigit())


def load_latest_snapshot(
    directory: Path, offsets: list[int], *, offset_max: int
) -> tuple[int, ProducerStates] | None:
    """Return (offset, states) of the newest whole snapshot at or below `offset_max`.

    Raises LogDirectoryFailure if one cannot be read: it may have states that the log has not.
    """
    for offset in reversed(offsets):
        if offset > offset_max:
            continue
        path = snapshot_path(directory, offset)
        with failing_the_directory(path):
            data = read_file(path) if path.exists() else b""
        try:
            return offset, decode_snapshot(data)
        except ValueError as cause:
            _log.warning("producer snapshot is unusable", path=str(path), error=str(cause))
            remove_quietly(path)
    return None
