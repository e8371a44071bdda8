"""The fixed part of a record batch, format version 2 (KIP-98, Kafka's ``DefaultRecordBatch``).

Owns reading, checking and patching headers; ``batch`` reads the records. The checksum covers
everything behind itself, so base offset and leader epoch can be patched without recomputing it.
"""

from collections.abc import Iterator
from struct import Struct as Layout
from typing import Final, NamedTuple

from crc32c import crc32c

from .errors import DecodeError
from .types import NO_TIMESTAMP, Buffer, LeaderEpoch, Offset, TimestampMs

HEADER_LAYOUT: Final = Layout(">qiibIhiqqqhii")
HEADER_SIZE: Final = HEADER_LAYOUT.size
# Base offset and batch length, which the batch length does not count.
LOG_OVERHEAD: Final = 12
LENGTH_MIN: Final = HEADER_SIZE - LOG_OVERHEAD
"""The batchLength of a batch without records."""
LEADER_EPOCH_POSITION: Final = 12
CRC_POSITION: Final = 17
# Where the checksummed bytes start.
ATTRIBUTES_POSITION: Final = 21
MAGIC_POSITION: Final = 16
MAGIC_V2: Final = 2

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20
DELETE_HORIZON_FLAG: Final = 0x40

_LEGACY_HEAD: Final = Layout(">qiib")
_BASE_OFFSET: Final = Layout(">q")
OFFSET_LENGTH_EPOCH: Final = Layout(">qii")
_LENGTH: Final = Layout(">i")
_LENGTH_POSITION: Final = 8
_CRC: Final = Layout(">I")
_ATTRIBUTES: Final = Layout(">h")
_MAX_TIMESTAMP: Final = Layout(">q")
MAX_TIMESTAMP_POSITION: Final = 35

_new_tuple: Final = tuple.__new__  # a named tuple's own constructor is Python code


class BatchHeader(NamedTuple):
    """A batch's fixed part; for magic 0 and 1 only offset, length and magic are read."""

    base_offset: Offset
    batch_length: int
    partition_leader_epoch: LeaderEpoch
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: TimestampMs
    max_timestamp: TimestampMs
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The whole batch's size, its overhead included."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> Offset:
        """The last offset the batch covers, whether or not its record survived compaction."""
        return Offset(self.base_offset + self.last_offset_delta)

    @property
    def next_offset(self) -> Offset:
        """The offset behind the batch."""
        return Offset(self.base_offset + self.last_offset_delta + 1)

    @property
    def compression(self) -> int:
        """The codec's number; it may be none of ``Compression``."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_log_append_time(self) -> bool:
        """Whether every record's timestamp is the batch's max timestamp."""
        return bool(self.attributes & LOG_APPEND_TIME_FLAG)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds control records, which consumers never see."""
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether the base timestamp is when tombstones may go (KIP-534)."""
        return bool(self.attributes & DELETE_HORIZON_FLAG)


def parse_batch_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Read the header at a position; too few bytes are a DecodeError, an old magic is not."""
    remaining = len(buffer) - position
    if remaining > MAGIC_POSITION:
        base_offset, length, epoch_or_crc, magic = _LEGACY_HEAD.unpack_from(buffer, position)
        if magic < MAGIC_V2:
            crc = epoch_or_crc & 0xFFFF_FFFF
            return BatchHeader(
                Offset(base_offset), length, LeaderEpoch(-1), magic, crc, 0, 0,
                NO_TIMESTAMP, NO_TIMESTAMP, -1, -1, -1, 0,
            )  # fmt: skip
        if remaining >= HEADER_SIZE:
            return BatchHeader._make(HEADER_LAYOUT.unpack_from(buffer, position))
    raise DecodeError(f"{remaining} bytes hold no batch header")


def check_batch(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Read a header and check the batch's size, format, counts and checksum."""
    header = parse_batch_header(buffer, position)
    if header.magic != MAGIC_V2:
        raise DecodeError(f"record format {header.magic} is not {MAGIC_V2}")
    remaining = len(buffer) - position
    if not HEADER_SIZE <= header.size_bytes <= remaining:
        raise DecodeError(f"a batch of {header.size_bytes} bytes where {remaining} remain")
    if header.record_count < 0 or header.last_offset_delta < 0:
        raise DecodeError(
            f"{header.record_count} records with last offset delta {header.last_offset_delta}"
        )
    if not has_valid_crc(buffer, header, position):
        raise DecodeError(f"the batch at offset {header.base_offset} has a wrong checksum")
    return header


def has_valid_crc(buffer: Buffer, header: BatchHeader, position: int = 0) -> bool:
    """Whether a whole batch's checksum is right."""
    end = position + header.size_bytes
    return crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : end]) == header.crc


def iterate_batches(
    buffer: Buffer, position: int = 0, *, stops_at_damage: bool = False
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position and header of each whole batch; stop at a torn tail.

    A length that no batch has is a DecodeError, or with `stops_at_damage` the end, too.
    """
    end = len(buffer)
    while position + HEADER_SIZE <= end:
        header: BatchHeader = _new_tuple(BatchHeader, HEADER_LAYOUT.unpack_from(buffer, position))
        if header.batch_length < LENGTH_MIN:
            if stops_at_damage:
                return
            raise DecodeError(
                f"a batch of {header.size_bytes} bytes at offset {header.base_offset}"
            )
        following = position + header.size_bytes
        if following > end:
            return
        yield position, header
        position = following


def patch_base_offset(batch: bytearray | memoryview, offset: Offset, position: int = 0) -> None:
    """Give a batch its place in the log; the checksum does not cover it."""
    _BASE_OFFSET.pack_into(batch, position, offset)


def patch_offset_and_epoch(
    batch: bytearray | memoryview, offset: Offset, epoch: LeaderEpoch, position: int = 0
) -> None:
    """Give a batch its place in the log and its leader's epoch."""
    (length,) = _LENGTH.unpack_from(batch, position + _LENGTH_POSITION)
    OFFSET_LENGTH_EPOCH.pack_into(batch, position, offset, length, epoch)


def seal(batch: bytearray | memoryview, position: int = 0) -> None:
    """Write the checksum of a batch whose other bytes are final."""
    (length,) = _LENGTH.unpack_from(batch, position + _LENGTH_POSITION)
    end = position + length + LOG_OVERHEAD
    crc = crc32c(memoryview(batch)[position + ATTRIBUTES_POSITION : end])
    _CRC.pack_into(batch, position + CRC_POSITION, crc)
