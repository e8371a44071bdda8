"""`headrace produce TOPIC`: lines of standard input as records."""

from __future__ import annotations

import base64
import binascii
import json
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli.clients import (
    admin_client,
    explain_kafka_errors,
    find_cluster,
    quiet_kafka_logs,
)
from headrace_cli.errors import BadInputError, CommandError
from headrace_cli.options import BootstrapServers, ClusterName, DataDirectory, TopicName
from headrace_cli.positions import PositionKind, parse_position

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headrace_cli.clients import Target

__all__ = ["produce"]

LINGER_MS = 5
#: An unreachable leader is reported after this time, and not waited for.
DELIVERY_TIMEOUT_MS = 30_000
REQUEST_TIMEOUT_MS = 10_000
_AUTO_CREATE = "auto.create.topics.enable"
#: In a line of JSON. A record's original position does not decide where it goes.
_JSON_FIELDS = frozenset(
    {"key", "key_base64", "value", "value_base64", "headers", "timestamp"}
    | {"topic", "partition", "offset"}
)


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


class LineFormat(StrEnum):
    """What a line is."""

    VALUE = "value"
    JSON = "json"


@dataclass(frozen=True, kw_only=True)
class Line:
    """A record to be written."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


def produce(  # noqa: PLR0913 - each is an option of the command line
    topic: TopicName,
    *,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", help="What separates the key from the value."),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="The key of every record.")] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, help="Where all go. Default: by their keys."),
    ] = None,
    timestamp: Annotated[
        str | None,
        typer.Option(help="Of every record: 2026-01-31T10:00:00Z, 15m (ago), or milliseconds."),
    ] = None,
    format_: Annotated[
        LineFormat,
        typer.Option("--format", help="A line is a value, or JSON as `consume -o json` writes it."),
    ] = LineFormat.VALUE,
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
    """Write each line of standard input as a record; an empty value after a key is a tombstone.

    What a line of JSON says (key, headers, timestamp) goes before what options say.
    """
    quiet_kafka_logs()
    if key is not None and key_separator is not None:
        raise BadInputError("say either --key or --key-separator")
    rest = Line(
        value=None,
        key=None if key is None else key.encode(),
        headers=tuple(parse_headers(header or [])),
        partition=partition,
        timestamp_ms=None if timestamp is None else parse_timestamp(timestamp),
    )
    target = find_cluster(data_dir, cluster, bootstrap_server)
    with admin_client(target) as admin:
        _check_topic(admin, topic)
    failures: list[BaseException] = []
    with explain_kafka_errors(target):
        producer = _open(target, acks, compression_type)
        _check_place(producer, topic, partition)
        lines = _lines(sys.stdin.buffer, format_, key_separator, rest)
        count, refused = _send_all(producer, topic, lines, failures)
        # Records before a bad line were accepted: they are written.
        producer.flush()
        producer.close()
    if failures:
        raise CommandError(f"{len(failures)} of {count} records were not stored: {failures[0]!r}")
    if refused is not None:
        raise _bad_line(refused, count)
    if sys.stderr.isatty():
        sys.stderr.write(f"{count} records written to {topic}\n")


def _lines(
    source: Iterable[bytes], format_: LineFormat, key_separator: str | None, rest: Line
) -> Iterator[Line | BadInputError]:
    """Yield each line, and the error in the first bad one, which is the last."""
    for text in source:
        try:
            yield parse_line(text.rstrip(b"\r\n"), format_, key_separator, rest)
        except BadInputError as error:
            yield error
            return


def _send_all(
    producer: Any,
    topic: str,
    lines: Iterable[Line | BadInputError],
    failures: list[BaseException],
) -> tuple[int, BadInputError | None]:
    """Send lines up to the first bad one; return how many, and that one's error."""
    count = 0
    for line in lines:
        if isinstance(line, BadInputError):
            return count, line
        _send(producer, topic, line).add_errback(failures.append)
        count += 1
    return count, None


def _bad_line(error: BadInputError, before: int) -> BadInputError:
    after = f"; {before} lines before it were written, those after it were not" if before else ""
    return BadInputError(f"line {before + 1}: {error}{after}")


def _open(target: Target, acks: Acks, compression_type: CompressionType) -> Any:
    from kafka import KafkaProducer

    from headrace_cli.codecs import install_codecs

    install_codecs()
    is_plain = compression_type is CompressionType.NONE
    return KafkaProducer(
        **target.client_settings,
        acks="all" if acks is Acks.ALL else int(acks.value),
        enable_idempotence=acks is Acks.ALL,
        linger_ms=LINGER_MS,
        delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        max_block_ms=DELIVERY_TIMEOUT_MS,
        compression_type=None if is_plain else compression_type.value,
    )


def _check_topic(admin: Any, topic: str) -> None:
    """Raise CommandError for a topic that nobody makes: a producer would wait for it."""
    from kafka.admin import ConfigResource, ConfigResourceType

    if topic in admin.list_topics():
        return
    node_id = str(admin.describe_cluster()["brokers"][0]["broker_id"])
    asked = ConfigResource(ConfigResourceType.BROKER, node_id, configs={_AUTO_CREATE: None})
    found = admin.describe_configs([asked], config_filter="all")["broker"][node_id]
    if found.get(_AUTO_CREATE, {}).get("value") != "true":
        raise CommandError(f"topic {topic} does not exist: create it with `headrace apply FILE`")


def _check_place(producer: Any, topic: str, partition: int | None) -> None:
    known = producer.partitions_for(topic)
    if known is None:
        raise CommandError(f"topic {topic} does not exist")
    if partition is not None and partition not in known:
        raise BadInputError(f"topic {topic} has no partition {partition}")


def _send(producer: Any, topic: str, line: Line) -> Any:
    return producer.send(
        topic,
        value=line.value,
        key=line.key,
        headers=list(line.headers),
        partition=line.partition,
        timestamp_ms=line.timestamp_ms,
    )


def parse_timestamp(text: str) -> int:
    """Return milliseconds since 1970. Raises BadInputError."""
    if text.isdigit():
        return int(text)
    position = parse_position(text, now=datetime.now(UTC))
    if position.kind is not PositionKind.TIMESTAMP:
        raise BadInputError(f"{text}: not a moment such as 2026-01-31T10:00:00Z, 15m")
    return position.value


def parse_line(text: bytes, format_: LineFormat, key_separator: str | None, rest: Line) -> Line:
    """Make a record from a line; `rest` has its missing fields. Raises BadInputError. Pure."""
    if format_ is LineFormat.JSON:
        return _parse_json(text, rest)
    if key_separator is None:
        return replace(rest, value=text)
    key, value = split_line(text, key_separator)
    return replace(rest, key=key, value=value)


def _parse_json(text: bytes, rest: Line) -> Line:
    try:
        fields = json.loads(text)
        unknown = sorted(fields.keys() - _JSON_FIELDS)
        if unknown:
            raise BadInputError(f"unknown fields {', '.join(unknown)} in line {text.decode()}")
        headers = fields.get("headers")
        moment = fields.get("timestamp")
        return Line(
            value=_bytes_of(fields, "value"),
            key=_bytes_of(fields, "key") if fields.keys() & {"key", "key_base64"} else rest.key,
            headers=rest.headers if headers is None else _headers_of(headers),
            partition=rest.partition,
            timestamp_ms=rest.timestamp_ms if moment is None else parse_timestamp(str(moment)),
        )
    except (ValueError, TypeError, AttributeError, KeyError, binascii.Error) as error:
        shown = text.decode(errors="replace")
        raise BadInputError(f"not a record as `consume -o json` writes it: {shown}") from error


def _bytes_of(fields: dict[str, Any], name: str) -> bytes | None:
    packed = fields.get(f"{name}_base64")
    if packed is not None:
        return base64.b64decode(packed, validate=True)
    text = fields.get(name)
    if text is None or isinstance(text, str):
        return None if text is None else text.encode()
    # A value that is JSON itself is written unchanged.
    return json.dumps(text, ensure_ascii=False).encode()


def _headers_of(headers: dict[str, Any]) -> tuple[tuple[str, bytes], ...]:
    """Return the headers; a list is of a name that comes several times."""
    return tuple(
        (name, _header_value(value))
        for name, found in headers.items()
        for value in (found if isinstance(found, list) else [found])
    )


def _header_value(value: Any) -> bytes:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"], validate=True)
    # kafka-python cannot write null: it becomes empty.
    return b"" if value is None else str(value).encode()


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
