"""Record batches built by hand, so that tests can build wrong ones too.

Independent of the broker's own `protocol.batch`: a bug there must not hide itself here.
"""

import struct
import time
from dataclasses import dataclass, field

from crc32c import crc32c

_HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_END = 21  # base offset 8, length 4, leader epoch 4, magic 1, CRC 4: the CRC covers the rest


@dataclass(frozen=True, kw_only=True)
class NewRecord:
    """One record to be put into a batch."""

    value: bytes | None = b""
    key: bytes | None = None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


@dataclass(kw_only=True)
class BatchFields:
    """Header fields of a batch; `None` means: the right value."""

    base_offset: int = 0
    batch_length: int | None = None
    partition_leader_epoch: int = -1
    magic: int = 2
    crc: int | None = None
    attributes: int = 0
    last_offset_delta: int | None = None
    base_timestamp: int = field(default_factory=lambda: int(time.time() * 1000))
    max_timestamp: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    record_count: int | None = None


def varint(value: int) -> bytes:
    """Zigzag varint, as record fields use it."""
    number = (value << 1) ^ (value >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _nullable(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def encode_record(record: NewRecord, offset_delta: int) -> bytes:
    """Return one record with its length."""
    headers = b"".join(_nullable(key) + _nullable(value) for key, value in record.headers)
    body = (
        b"\x00"
        + varint(0)
        + varint(offset_delta)
        + _nullable(record.key)
        + _nullable(record.value)
        + varint(len(record.headers))
        + headers
    )
    return varint(len(body)) + body


def build_batch(
    records: list[NewRecord], fields: BatchFields | None = None, payload: bytes | None = None
) -> bytes:
    """Return a batch of `records` (or of the ready `payload`) with the given header fields."""
    fields = fields or BatchFields()
    if payload is None:
        payload = b"".join(encode_record(record, i) for i, record in enumerate(records))
    values = [
        fields.base_offset,
        _HEADER.size - 12 + len(payload) if fields.batch_length is None else fields.batch_length,
        fields.partition_leader_epoch,
        fields.magic,
        0,
        fields.attributes,
        len(records) - 1 if fields.last_offset_delta is None else fields.last_offset_delta,
        fields.base_timestamp,
        fields.base_timestamp if fields.max_timestamp is None else fields.max_timestamp,
        fields.producer_id,
        fields.producer_epoch,
        fields.base_sequence,
        len(records) if fields.record_count is None else fields.record_count,
    ]
    batch = bytearray(_HEADER.pack(*values) + payload)
    crc = crc32c(bytes(batch[_CRC_END:])) if fields.crc is None else fields.crc
    struct.pack_into(">I", batch, _CRC_END - 4, crc)
    return bytes(batch)
