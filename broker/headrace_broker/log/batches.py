"""The fixed part of a v2 record batch, as the log reads and patches it in place.

Owns the offsets of the header's fields (KIP-98) and walks over batches by their headers. It
must not look into records: `headrace_broker.protocol.batch` does that, off the hot path.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

HEADER: Final = Struct(">qiibIhiqqqhii")
"""baseOffset, batchLength, partitionLeaderEpoch, magic, crc, attributes, lastOffsetDelta,
baseTimestamp, maxTimestamp, producerId, producerEpoch, baseSequence, recordCount."""

HEADER_SIZE: Final = HEADER.size
LOG_OVERHEAD: Final = 12
"""baseOffset and batchLength, which batchLength itself does not count."""
CRC_START: Final = 21
"""The checksum covers everything from the attributes on, so offset and epoch may be patched."""
EPOCH_POSITION: Final = 12
MAGIC_POSITION: Final = 16
CRC_POSITION: Final = 17
ATTRIBUTES_POSITION: Final = 21
MAX_TIMESTAMP_POSITION: Final = 35
MAGIC_V2: Final = 2

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME_FLAG: Final = 0x08
TRANSACTIONAL_FLAG: Final = 0x10
CONTROL_FLAG: Final = 0x20
DELETE_HORIZON_FLAG: Final = 0x40

NO_TIMESTAMP: Final = -1
NO_EPOCH: Final = -1
NO_PRODUCER_ID: Final = -1
SEQUENCE_MAX: Final = (1 << 31) - 1

OFFSET_AND_LENGTH: Final = Struct(">qi")
OFFSET_LENGTH_EPOCH: Final = Struct(">qii")
BASE_OFFSET: Final = Struct(">q")
LEADER_EPOCH: Final = Struct(">i")


class Header(NamedTuple):
    """The 61 bytes before a batch's records."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        """Offset of the last record the batch ever had."""
        return self.base_offset + self.last_offset_delta

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a transaction marker or another control record."""
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_FLAG)


def read_header(buffer: bytes | memoryview, position: int = 0) -> Header:
    """Read the header at a position that has at least `HEADER_SIZE` bytes."""
    return Header._make(HEADER.unpack_from(buffer, position))


def iterate_headers(buffer: bytes | memoryview) -> Iterator[tuple[int, Header]]:
    """Yield (position, header) of each whole batch of a buffer."""
    position, end = 0, len(buffer)
    while position + HEADER_SIZE <= end:
        header = read_header(buffer, position)
        if header.batch_length < HEADER_SIZE - LOG_OVERHEAD or position + header.size > end:
            return
        yield position, header
        position += header.size


def last_sequence(base_sequence: int, last_offset_delta: int) -> int:
    """Add to a sequence number, which wraps from 2^31-1 to 0."""
    sequence = base_sequence + last_offset_delta
    return sequence if sequence <= SEQUENCE_MAX else sequence - SEQUENCE_MAX - 1
