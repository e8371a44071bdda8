"""The four codecs of record batches, with a limit on the decompressed size.

A batch's sender chooses its bytes, so its decompressed size is limited before memory is allocated:
by an absolute limit and by a ratio that ordinary data never reaches. Snappy comes raw (librdkafka)
or in the framing of xerial's snappy-java (Java), whose chunk lengths are checked one by one.
"""

from collections.abc import Callable
from enum import IntEnum, unique
from struct import Struct as Layout
from typing import Final

import cramjam

from .errors import DecodeError
from .types import Buffer


@unique
class Compression(IntEnum):
    """The codec in the lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


DECOMPRESSED_SIZE_MAX: Final = 64 * 1024 * 1024
RATIO_MAX: Final = 1024
# Below this a high ratio is harmless: a few repeated records compress very well.
RATIO_FREE_SIZE: Final = 8 * 1024 * 1024

_FIRST_GUESS_RATIO: Final = 4
_FIRST_GUESS_MIN: Final = 16 * 1024
# cramjam's error when the output buffer is too small and nothing else is wrong.
_OUTPUT_IS_FULL: Final = "failed to write whole buffer"

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_VERSIONS: Final = Layout(">ii")
_XERIAL_HEADER: Final = _XERIAL_MAGIC + _XERIAL_VERSIONS.pack(1, 1)
_XERIAL_BLOCK_SIZE: Final = 32 * 1024
_CHUNK_LENGTH: Final = Layout(">i")


def compress(compression: Compression, data: Buffer, level: int | None = None) -> bytes:
    """Compress as Kafka's Java client would, so that every client can read it.

    Without a `level` of the codec it is as Kafka's default; snappy has none.
    """
    match compression:
        case Compression.NONE:
            return bytes(data)
        case Compression.GZIP:
            return bytes(cramjam.gzip.compress(data, level=level))
        case Compression.SNAPPY:
            return _compress_xerial(memoryview(data))
        case Compression.LZ4:
            # Kafka's Java client refuses frames whose blocks depend on each other.
            compressor = cramjam.lz4.Compressor(level=level, block_linked=False)
            compressor.compress(bytes(data))
            return bytes(compressor.finish())
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=3 if level is None else level))


def decompress(compression: int, data: Buffer, size_max: int = DECOMPRESSED_SIZE_MAX) -> bytes:
    """Decompress; more than ``size_max``, more than the ratio allows, or bad bytes: DecodeError."""
    limit = min(size_max, max(RATIO_FREE_SIZE, RATIO_MAX * len(data)))
    try:
        match compression:
            case Compression.NONE:
                return bytes(data)
            case Compression.GZIP:
                return _decompress_into(cramjam.gzip.decompress_into, data, limit)
            case Compression.SNAPPY:
                return _decompress_snappy(bytes(data), limit)
            case Compression.LZ4:
                return _decompress_into(cramjam.lz4.decompress_into, data, limit)
            case Compression.ZSTD:
                return _decompress_into(cramjam.zstd.decompress_into, data, limit)
            case _:
                raise DecodeError(f"unknown compression {compression}")
    except cramjam.DecompressionError as error:
        raise DecodeError(f"bad {Compression(compression).name.lower()} data: {error}") from error


def _decompress_into(
    decompress_into: Callable[[Buffer, bytearray], int], data: Buffer, limit: int
) -> bytes:
    """Decompress into a buffer that grows up to the limit; cramjam cannot stream."""
    size = min(limit, max(_FIRST_GUESS_MIN, _FIRST_GUESS_RATIO * len(data)))
    while True:
        out = bytearray(size)
        try:
            length = decompress_into(data, out)
        except cramjam.DecompressionError as error:
            if _OUTPUT_IS_FULL not in str(error):
                raise
            if size == limit:
                raise _too_large(limit) from error
            size = min(limit, size * 4)
        else:
            return bytes(memoryview(out)[:length])


def _decompress_snappy(data: bytes, limit: int) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        if cramjam.snappy.decompress_raw_len(data) > limit:
            raise _too_large(limit)
        return bytes(cramjam.snappy.decompress_raw(data))
    position = len(_XERIAL_HEADER)
    if len(data) < position:
        raise DecodeError("snappy framing ends within its header")
    out = bytearray()
    while position < len(data):
        if len(data) - position < _CHUNK_LENGTH.size:
            raise DecodeError("snappy framing ends within a chunk's length")
        (length,) = _CHUNK_LENGTH.unpack_from(data, position)
        position += _CHUNK_LENGTH.size
        if not 0 < length <= len(data) - position:
            raise DecodeError(f"snappy chunk of {length} of {len(data) - position} bytes")
        chunk = data[position : position + length]
        # Raw snappy starts with its decompressed size, so it is refused before memory is allocated.
        if len(out) + cramjam.snappy.decompress_raw_len(chunk) > limit:
            raise _too_large(limit)
        out += cramjam.snappy.decompress_raw(chunk)
        position += length
    return bytes(out)


def _compress_xerial(data: memoryview) -> bytes:
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(data), _XERIAL_BLOCK_SIZE):
        chunk = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_SIZE]))
        out += _CHUNK_LENGTH.pack(len(chunk))
        out += chunk
    return bytes(out)


def _too_large(limit: int) -> DecodeError:
    return DecodeError(f"a batch unpacks to more than {limit} bytes")
