"""`headrace produce TOPIC`: lines of standard input as records."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace_cli.clients import (
    check_advertised,
    explain_kafka_errors,
    find_cluster,
    quiet_kafka_logs,
)
from headrace_cli.errors import BadInputError, CommandError
from headrace_cli.options import BootstrapServers, ClusterName, DataDirectory, TopicName

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["produce"]

LINGER_MS = 5
#: A leader that cannot be reached is reported after this time, and not waited for.
DELIVERY_TIMEOUT_MS = 30_000
REQUEST_TIMEOUT_MS = 10_000


class Acks(StrEnum):
    """How many replicas must have a record before it counts as written."""

    NONE = "0"
    LEADER = "1"
    ALL = "all"


class CompressionType(StrEnum):
    """How batches are packed, in Kafka's words."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


def produce(  # noqa: PLR0913 - each is an option of the command line
    topic: TopicName,
    *,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", help="What separates the key from the value."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", help="name=value, for every record; may be repeated."),
    ] = None,
    acks: Annotated[Acks, typer.Option("--acks", help="Who must have stored a record.")] = Acks.ALL,
    compression_type: Annotated[
        CompressionType, typer.Option("--compression-type", help="How batches are packed.")
    ] = CompressionType.NONE,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Write each line of standard input as a record; an empty value after a key is a tombstone."""
    quiet_kafka_logs()
    headers = parse_headers(header or [])
    target = find_cluster(data_dir, cluster, bootstrap_server)
    check_advertised(target)
    from kafka import KafkaProducer

    from headrace_cli.codecs import install_codecs

    install_codecs()
    failures: list[BaseException] = []
    with explain_kafka_errors(target):
        producer = KafkaProducer(
            **target.client_settings,
            acks="all" if acks is Acks.ALL else int(acks.value),
            enable_idempotence=acks is Acks.ALL,
            linger_ms=LINGER_MS,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            max_block_ms=DELIVERY_TIMEOUT_MS,
            compression_type=(
                None if compression_type is CompressionType.NONE else compression_type.value
            ),
        )
        if producer.partitions_for(topic) is None:
            raise CommandError(f"topic {topic} does not exist")
        count = 0
        for line in sys.stdin.buffer:
            key, value = split_line(line.rstrip(b"\r\n"), key_separator)
            producer.send(topic, value=value, key=key, headers=headers).add_errback(failures.append)
            count += 1
        producer.flush()
        producer.close()
    if failures:
        raise CommandError(f"{len(failures)} of {count} records were not stored: {failures[0]!r}")
    if sys.stderr.isatty():
        sys.stderr.write(f"{count} records written to {topic}\n")


def parse_headers(texts: Sequence[str]) -> list[tuple[str, bytes]]:
    """Parse `name=value` options."""
    headers = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise BadInputError(f"--header {text}: must be name=value")
        headers.append((name, value.encode()))
    return headers


def split_line(line: bytes, key_separator: str | None) -> tuple[bytes | None, bytes | None]:
    """Split a line into key and value; without a separator in it, it is all value."""
    if key_separator is None:
        return None, line
    key, separator, value = line.partition(key_separator.encode())
    if not separator:
        raise BadInputError(f"no {key_separator!r} in line {line.decode(errors='replace')!r}")
    return key, value or None
