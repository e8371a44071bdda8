"""A leader's checks before it appends a batch, using only the header where possible.

Owns Kafka's rules for produced batches (ProduceRequest.validateRecords, LogValidator) and the error
for each violation. Records are read only if a topic's settings require it.
"""

from enum import Enum, unique
from typing import Final, NoReturn

from crc32c import crc32c

from headrace_broker.log.batches import Header
from headrace_broker.log.config import INFINITE, LogConfig
from headrace_broker.protocol.batch import iterate_records
from headrace_broker.protocol.batch_header import (
    ATTRIBUTES_POSITION,
    COMPRESSION_MASK,
    CONTROL_FLAG,
    HEADER_LAYOUT,
    HEADER_SIZE,
    LENGTH_MIN,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MAGIC_V2,
    TRANSACTIONAL_FLAG,
    seal,
)
from headrace_broker.protocol.compression import Compression, compress, decompress
from headrace_broker.protocol.errors import ApiError, DecodeError, ErrorCode, RecordsRefusedError
from headrace_broker.protocol.types import NO_TIMESTAMP


@unique
class AppendOrigin(Enum):
    """Who appends as leader: a client, or a coordinator of this broker (which writes markers)."""

    CLIENT = 0
    COORDINATOR = 1


_CODECS: Final = {
    "uncompressed": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
_new_tuple: Final = tuple.__new__
_CODEC_MAX: Final = max(Compression)
_SPECIAL_FLAGS: Final = CONTROL_FLAG | TRANSACTIONAL_FLAG


def check_leader_batch(
    view: memoryview, config: LogConfig, now_ms: int, origin: AppendOrigin
) -> Header:
    """Return the header of the one batch in `view`, or raise the first violation."""
    size = len(view)
    if size < HEADER_SIZE:
        _refuse_short(view)
    # Positional, and without the class's own constructor: this runs for every produced batch.
    header: Header = _new_tuple(Header, HEADER_LAYOUT.unpack_from(view))
    (
        base_offset, length, _, magic, crc, attributes, delta,
        _, max_timestamp, producer_id, producer_epoch, base_sequence, count,
    ) = header  # fmt: skip
    if magic != MAGIC_V2:
        _refuse_magic(magic)
    if length != size - LOG_OVERHEAD:
        _refuse_length(length, size)
    if size > config.max_message_bytes:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {size} bytes, max.message.bytes is {config.max_message_bytes}",
        )
    if crc32c(view[ATTRIBUTES_POSITION:]) != crc:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "the batch's checksum does not match its bytes")
    if attributes & COMPRESSION_MASK > _CODEC_MAX:
        raise ApiError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"compression type {attributes & COMPRESSION_MASK} is unknown",
        )
    if count <= 0 or delta != count - 1:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"{count} records do not fit a last offset delta of {delta}",
        )
    if base_offset and origin is AppendOrigin.CLIENT:
        raise ApiError(ErrorCode.INVALID_RECORD, f"the base offset must be 0 but is {base_offset}")
    if (attributes & _SPECIAL_FLAGS or producer_id >= 0) and (
        producer_id < 0 or base_sequence < 0 or producer_epoch < 0 or attributes & CONTROL_FLAG
    ):
        _check_producer_fields(header, origin)
    if (
        attributes & LOG_APPEND_TIME_FLAG
        or max_timestamp - now_ms > config.message_timestamp_after_max_ms
    ) and not config.stamps_append_time:
        _refuse_timestamp(header, config, now_ms)
    return header


def _refuse_timestamp(header: Header, config: LogConfig, now_ms: int) -> NoReturn:
    if header.attributes & LOG_APPEND_TIME_FLAG:
        raise ApiError(
            ErrorCode.INVALID_TIMESTAMP, "a producer must not set the timestamp type LogAppendTime"
        )
    raise ApiError(
        ErrorCode.INVALID_TIMESTAMP,
        f"timestamp {header.max_timestamp} is more than "
        f"{config.message_timestamp_after_max_ms} ms ahead of the broker's clock, {now_ms}",
    )


def _check_producer_fields(header: Header, origin: AppendOrigin) -> None:
    if header.is_control:
        if origin is AppendOrigin.CLIENT:
            raise ApiError(ErrorCode.INVALID_RECORD, "clients must not write control records")
        return
    if header.producer_id < 0:
        raise ApiError(ErrorCode.INVALID_RECORD, "a transactional batch needs a producer id")
    if header.producer_epoch < 0:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"producer {header.producer_id} sent epoch {header.producer_epoch}",
        )
    raise ApiError(
        ErrorCode.INVALID_RECORD,
        f"producer {header.producer_id} sent sequence {header.base_sequence}",
    )


def _refuse_short(view: memoryview) -> NoReturn:
    if len(view) > MAGIC_POSITION and 0 <= view[MAGIC_POSITION] < MAGIC_V2:
        _refuse_magic(view[MAGIC_POSITION])
    raise ApiError(
        ErrorCode.INVALID_RECORD, "a partition's records must hold exactly one whole record batch"
    )


def _refuse_magic(magic: int) -> NoReturn:
    if 0 <= magic < MAGIC_V2:
        raise ApiError(
            ErrorCode.INVALID_RECORD, f"message format {magic} is not supported, only 2 is"
        )
    raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"magic {magic} is unknown")


def _refuse_length(length: int, size: int) -> NoReturn:
    if length < LENGTH_MIN:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"a batch cannot have length {length}")
    if length > size - LOG_OVERHEAD:
        raise ApiError(
            ErrorCode.CORRUPT_MESSAGE, f"a batch of length {length} does not fit into {size} bytes"
        )
    raise ApiError(
        ErrorCode.INVALID_RECORD, "a partition's records must hold exactly one record batch"
    )


def check_follower_batch(batch: memoryview, header: Header, next_offset: int) -> None:
    """Check a batch from the leader: the leader has validated it, but not its transfer."""
    if header.magic != MAGIC_V2 or crc32c(batch[ATTRIBUTES_POSITION:]) != header.crc:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "a fetched batch is damaged")
    if header.base_offset < next_offset or header.last_offset_delta < 0:
        raise ApiError(
            ErrorCode.CORRUPT_MESSAGE,
            f"fetched offset {header.base_offset} where {next_offset} was expected",
        )


def looks_at_records(config: LogConfig) -> bool:
    """Whether a topic's settings cannot be enforced by headers alone."""
    return (
        config.compacts
        or config.compression_type != "producer"
        or (config.message_timestamp_before_max_ms != INFINITE and not config.stamps_append_time)
    )


def prepare_records(
    view: memoryview, header: Header, config: LogConfig, now_ms: int
) -> tuple[memoryview, Header]:
    """Check each record as the settings require; recompress if the topic's codec differs."""
    try:
        _check_records(view, config, now_ms)
        wanted = _CODECS.get(config.compression_type, header.compression)
        if wanted == header.compression:
            return view, header
        packed = decompress(header.compression, view[HEADER_SIZE:])
    except DecodeError as error:
        raise ApiError(ErrorCode.INVALID_RECORD, str(error)) from error
    body = compress(Compression(wanted), packed, config.compression_level)
    header = header._replace(
        batch_length=LENGTH_MIN + len(body),
        attributes=header.attributes & ~COMPRESSION_MASK | wanted,
    )
    if header.size_bytes > config.max_message_bytes:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {header.size_bytes} bytes as {config.compression_type}, "
            f"max.message.bytes is {config.max_message_bytes}",
        )
    batch = bytearray(HEADER_LAYOUT.pack(*header))
    batch += body
    seal(batch)
    return memoryview(batch), header


def _check_records(view: memoryview, config: LogConfig, now_ms: int) -> None:
    """Raise RecordsRefusedError with every record that the topic's settings do not allow."""
    oldest = now_ms - config.message_timestamp_before_max_ms
    newest = now_ms + config.message_timestamp_after_max_ms
    checks_age = not config.stamps_append_time
    code = ErrorCode.INVALID_RECORD
    wrong: list[tuple[int, str]] = []
    for place, record in enumerate(iterate_records(view)):
        if config.compacts and record.key is None:
            wrong.append((place, "Compacted topic cannot accept message without key."))
        elif (
            checks_age
            and record.timestamp != NO_TIMESTAMP
            and not oldest <= record.timestamp <= newest
        ):
            # As in Kafka: one record with an invalid timestamp fails the whole batch.
            code = ErrorCode.INVALID_TIMESTAMP
            reason = f"timestamp {record.timestamp} is more than " + (
                f"{config.message_timestamp_before_max_ms} ms behind the broker's, {now_ms}"
                if record.timestamp < oldest
                else f"{config.message_timestamp_after_max_ms} ms ahead of the broker's, {now_ms}"
            )
            wrong.append((place, reason))
    if wrong:
        shown = "; ".join(f"record {place}: {reason}" for place, reason in wrong[:3])
        raise RecordsRefusedError(
            code,
            f"One or more records have been rejected, {len(wrong)} in all: {shown}",
            tuple(wrong),
        )
