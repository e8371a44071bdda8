"""Compression for kafka-python: Headrace's codec in the places of optional libraries.

kafka-python reads and writes snappy, lz4 and zstd with one library each, none of which is
installed. The broker's codec, on cramjam, supports all of them, with limits on the decompressed
size of a batch.
"""

from __future__ import annotations

from functools import partial

from headrace_broker.protocol.compression import Compression, compress, decompress
from headrace_broker.protocol.errors import DecodeError

__all__ = ["install_codecs"]


def install_codecs() -> None:
    """Have kafka-python's consumers and producers know every compression of Kafka's."""
    from kafka import KafkaProducer, codec
    from kafka.record import default_records

    for compression in (Compression.SNAPPY, Compression.LZ4, Compression.ZSTD):
        name = compression.name.lower()
        setattr(codec, f"has_{name}", _yes)
        setattr(default_records, f"{name}_encode", partial(_encode, compression))
        setattr(default_records, f"{name}_decode", partial(_decode, compression))
        KafkaProducer._COMPRESSORS[name] = (_yes, int(compression))  # noqa: SLF001  it has no other way


def _yes() -> bool:
    return True


def _encode(compression: Compression, data: bytes) -> bytes:
    return compress(compression, data)


def _decode(compression: Compression, data: bytes) -> bytes:
    from kafka.errors import CorruptRecordError

    try:
        return decompress(compression, data)
    except DecodeError as error:
        raise CorruptRecordError(str(error)) from error
