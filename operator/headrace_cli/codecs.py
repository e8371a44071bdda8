"""Compression for kafka-python: our own codec in the places where it looks for other libraries.

kafka-python reads and writes snappy, lz4 and zstd with a library each, of which none is installed;
the broker's codec, on cramjam, has all of them, with its bounds on what a batch unpacks to.
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
