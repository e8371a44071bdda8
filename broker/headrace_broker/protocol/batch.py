"""Record batches, format version 2: the records inside, and rebuilt batches.

Owns the record format (KIP-98, Kafka's ``DefaultRecord``) and re-exports ``batch_header``. Produce
and fetch need only the headers; coordinators, compaction and lookups by time read the records,
which are as untrusted as any other bytes.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum, unique
from struct import Struct as Layout
from typing import Final, NamedTuple, TypedDict, Unpack

from .batch_header import (
    ATTRIBUTES_POSITION,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_LAYOUT,
    HEADER_SIZE,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC_V2,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    check_batch,
    has_valid_crc,
    iterate_batches,
    parse_batch_header,
    patch_base_offset,
    patch_offset_and_epoch,
    seal,
)
from .compression import DECOMPRESSED_SIZE_MAX, Compression, compress, decompress
from .errors import DecodeError
from .types import Buffer, LeaderEpoch, Offset, TimestampMs
from .wire import varuint

__all__ = [
    "ATTRIBUTES_POSITION",
    "CONTROL_FLAG",
    "HEADER_SIZE",
    "LOG_APPEND_TIME_FLAG",
    "LOG_OVERHEAD",
    "MAGIC_V2",
    "TRANSACTIONAL_FLAG",
    "BatchHeader",
    "BatchOptions",
    "Compression",
    "ControlType",
    "Header",
    "NewRecord",
    "Record",
    "build_batch",
    "build_end_txn_marker",
    "check_batch",
    "has_valid_crc",
    "iterate_batches",
    "iterate_records",
    "parse_batch_header",
    "parse_control_type",
    "patch_base_offset",
    "patch_offset_and_epoch",
    "seal",
]

Header = tuple[str, bytes | None]

# Length, attributes, timestamp and offset deltas, key and value lengths, header count.
_RECORD_SIZE_MIN: Final = 7
_VARINT_BITS_MAX: Final = 32
_VARLONG_BITS_MAX: Final = 64
_CONTINUES: Final = 0x80
_INT16_PAIR: Final = Layout(">hh")
_END_TXN_VALUE: Final = Layout(">hi")
_CONTROL_KEY_VERSION: Final = 0


@unique
class ControlType(IntEnum):
    """The type of a control record; the second int16 of its key."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class Record(NamedTuple):
    """One record as read from a batch."""

    offset: Offset
    timestamp: TimestampMs
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


class NewRecord(NamedTuple):
    """One record for a new batch."""

    key: bytes | None = None
    value: bytes | None = None
    timestamp: int = 0
    headers: Sequence[Header] = ()
    # None: the record's position in the batch. Compaction keeps the original offsets.
    offset_delta: int | None = None


class BatchOptions(TypedDict, total=False):
    """What a batch's header contains besides its records."""

    base_offset: int
    partition_leader_epoch: int
    compression: Compression
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_control: bool
    is_transactional: bool
    # Default: the last record's. Compaction keeps a batch's range when its last record is removed.
    last_offset_delta: int
    # Becomes every record's timestamp.
    log_append_time: int
    # When the batch's tombstones may be removed; it replaces the base timestamp (KIP-534).
    delete_horizon: int


def iterate_records(
    batch: Buffer, position: int = 0, *, size_max: int = DECOMPRESSED_SIZE_MAX
) -> Iterator[Record]:
    """Yield a batch's records; malformed ones, or too many bytes of them, are a DecodeError.

    The caller checks the checksum. Keys and values are copies.
    """
    header = parse_batch_header(batch, position)
    end = position + header.size_bytes
    if header.magic != MAGIC_V2 or not position + HEADER_SIZE <= end <= len(batch):
        raise DecodeError(f"no whole batch of format {MAGIC_V2} at {position}")
    packed = memoryview(batch)[position + HEADER_SIZE : end]
    body = decompress(header.compression, packed, size_max)
    if not 0 <= header.record_count * _RECORD_SIZE_MIN <= len(body):
        raise DecodeError(f"{header.record_count} records in {len(body)} bytes")
    place = 0
    try:
        for _ in range(header.record_count):
            record, place = _read_record(body, place, header)
            yield record
    except (IndexError, UnicodeDecodeError) as error:
        raise DecodeError(f"a record of the batch at {header.base_offset}: {error}") from error
    if place != len(body):
        raise DecodeError(f"{len(body) - place} bytes follow the batch's last record")


def _read_record(body: bytes, position: int, header: BatchHeader) -> tuple[Record, int]:
    size, position = _read_varint(body, position, _VARINT_BITS_MAX)
    end = position + size
    if size < 0 or end > len(body):
        raise DecodeError(f"a record of {size} bytes where {len(body) - position} remain")
    timestamp_delta, position = _read_varint(body, position + 1, _VARLONG_BITS_MAX)
    offset_delta, position = _read_varint(body, position, _VARINT_BITS_MAX)
    if not 0 <= offset_delta <= header.last_offset_delta:
        raise DecodeError(f"offset delta {offset_delta} beyond {header.last_offset_delta}")
    key, position = _read_bytes(body, position, end)
    value, position = _read_bytes(body, position, end)
    headers: tuple[Header, ...] = ()
    if body[position]:
        headers, position = _read_headers(body, position, end)
    else:
        position += 1
    if position != end:
        raise DecodeError(f"a record ends at {position}, not at {end}")
    stamp = header.base_timestamp + timestamp_delta
    if header.attributes & LOG_APPEND_TIME_FLAG:
        stamp = header.max_timestamp
    offset = Offset(header.base_offset + offset_delta)
    return Record(offset, TimestampMs(stamp), key, value, headers), end


def _read_varint(body: bytes, position: int, bits_max: int) -> tuple[int, int]:
    """Read a zigzag varint (KIP-98 uses Protocol Buffers' encoding)."""
    value = body[position]
    position += 1
    if value >= _CONTINUES:
        shift = 7
        value &= 0x7F
        while True:
            byte = body[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < _CONTINUES:
                break
            shift += 7
            if shift >= bits_max:
                raise DecodeError(f"a varint of more than {bits_max} bits")
        if value >> bits_max:
            raise DecodeError(f"a varint of more than {bits_max} bits")
    return (value >> 1) ^ -(value & 1), position


def _read_bytes(body: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size = body[position]
    if size < _CONTINUES:  # the usual case without a call
        size = (size >> 1) ^ -(size & 1)
        start = position + 1
    else:
        size, start = _read_varint(body, position, _VARINT_BITS_MAX)
    if size < 0:
        return None, start
    stop = start + size
    if stop > end:
        raise DecodeError(f"{size} bytes of a record that has {end - start} left")
    return body[start:stop], stop


def _read_headers(body: bytes, position: int, end: int) -> tuple[tuple[Header, ...], int]:
    count, position = _read_varint(body, position, _VARINT_BITS_MAX)
    if not count:
        return (), position
    # A header is at least the lengths of its key and its value.
    if not 0 < count * 2 <= end - position:
        raise DecodeError(f"{count} headers in {end - position} bytes")
    headers = []
    for _ in range(count):
        key, position = _read_bytes(body, position, end)
        if key is None:
            raise DecodeError("a record header without a key")
        value, position = _read_bytes(body, position, end)
        headers.append((key.decode(), value))
    return tuple(headers), position


def build_batch(records: Sequence[NewRecord], **options: Unpack[BatchOptions]) -> bytearray:
    """Build one sealed batch; records without an offset delta are numbered by position."""
    log_append_time = options.get("log_append_time")
    compression = options.get("compression", Compression.NONE)
    delete_horizon = options.get("delete_horizon")
    base_timestamp = records[0].timestamp if records else -1
    if delete_horizon is not None:
        base_timestamp = delete_horizon
    body = bytearray()
    offset_delta = -1
    for place, record in enumerate(records):
        offset_delta = place if record.offset_delta is None else record.offset_delta
        _write_record(body, record, offset_delta, record.timestamp - base_timestamp)
    max_timestamp = max((record.timestamp for record in records), default=-1)
    packed = compress(compression, body)
    attributes = (
        compression
        | (LOG_APPEND_TIME_FLAG if log_append_time is not None else 0)
        | (TRANSACTIONAL_FLAG if options.get("is_transactional") else 0)
        | (CONTROL_FLAG if options.get("is_control") else 0)
        | (DELETE_HORIZON_FLAG if delete_horizon is not None else 0)
    )
    header = BatchHeader(
        base_offset=Offset(options.get("base_offset", 0)),
        batch_length=HEADER_SIZE - LOG_OVERHEAD + len(packed),
        partition_leader_epoch=LeaderEpoch(options.get("partition_leader_epoch", -1)),
        magic=MAGIC_V2,
        crc=0,
        attributes=attributes,
        last_offset_delta=options.get("last_offset_delta", max(offset_delta, 0)),
        base_timestamp=TimestampMs(base_timestamp),
        max_timestamp=TimestampMs(max_timestamp if log_append_time is None else log_append_time),
        producer_id=options.get("producer_id", -1),
        producer_epoch=options.get("producer_epoch", -1),
        base_sequence=options.get("base_sequence", -1),
        record_count=len(records),
    )
    batch = bytearray(HEADER_LAYOUT.pack(*header))
    batch += packed
    seal(batch)
    return batch


def _write_record(
    out: bytearray, record: NewRecord, offset_delta: int, timestamp_delta: int
) -> None:
    body = bytearray(1)  # attributes, all unused
    body += _varint(timestamp_delta)
    body += _varint(offset_delta)
    _write_bytes(body, record.key)
    _write_bytes(body, record.value)
    body += _varint(len(record.headers))
    for key, value in record.headers:
        _write_bytes(body, key.encode())
        _write_bytes(body, value)
    out += _varint(len(body))
    out += body


def _write_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out += _varint(-1)
    else:
        out += _varint(len(value))
        out += value


def _varint(value: int) -> bytes:
    """Encode a zigzag varint, of 32 or 64 bits alike."""
    return varuint((value << 1) ^ (value >> (_VARLONG_BITS_MAX - 1)))


def build_end_txn_marker(
    control: ControlType, coordinator_epoch: int, timestamp: int, **options: Unpack[BatchOptions]
) -> bytearray:
    """Make the control batch that ends a producer's transaction in a partition (KIP-98)."""
    marker = NewRecord(
        key=_INT16_PAIR.pack(_CONTROL_KEY_VERSION, control),
        value=_END_TXN_VALUE.pack(0, coordinator_epoch),
        timestamp=timestamp,
    )
    options["is_control"] = options["is_transactional"] = True
    return build_batch([marker], **options)


def parse_control_type(key: bytes | None) -> int:
    """Return the type in a control record's key; it may be none of ``ControlType``."""
    if key is None or len(key) < _INT16_PAIR.size:
        raise DecodeError("a control record without a type in its key")
    kind: int = _INT16_PAIR.unpack_from(key)[1]
    return kind
