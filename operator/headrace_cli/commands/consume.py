"""`headrace consume TOPIC`: records on standard output."""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace_cli.clients import (
    Target,
    check_advertised,
    explain_kafka_errors,
    find_cluster,
    quiet_kafka_logs,
)
from headrace_cli.errors import BadInputError, CommandError
from headrace_cli.options import BootstrapServers, ClusterName, DataDirectory, TopicName
from headrace_cli.positions import Position, PositionKind, parse_position

__all__ = ["consume"]

POLL_MS = 500
#: How long `--follow` waits before it looks again for missing brokers or a missing topic.
RETRY_SECONDS = 1.0
#: How long one such attempt takes if no broker answers.
BOOTSTRAP_TIMEOUT_MS = 10_000


class RecordFormat(StrEnum):
    """How records are printed."""

    VALUE = "value"
    JSON = "json"
    FULL = "full"


class IsolationLevel(StrEnum):
    """What is read of transactions, in Kafka's own words."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


_Isolation = Annotated[
    IsolationLevel,
    typer.Option(help="read_committed: leave out what transactions aborted, or have open."),
]


def consume(  # noqa: PLR0913 - each is an option of the command line
    topic: TopicName,
    *,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="earliest, latest, a moment (2026-01-31T10:00:00Z), a time ago (15m), an offset.",
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(help="Where to stop: a moment, a time ago, an offset. Default: the end."),
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="Only this one; may be repeated."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Print only records that have this key.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="Read as a member, and commit offsets.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new records; else stop at the end.")
    ] = False,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-n", help="Stop after so many.", min=1)
    ] = None,
    isolation_level: _Isolation = IsolationLevel.READ_UNCOMMITTED,
    output: Annotated[
        RecordFormat,
        typer.Option(
            "--output",
            "-o",
            help="value; one JSON object a line; full: partition, offset, time, key, value.",
        ),
    ] = RecordFormat.VALUE,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Print records, from the earliest or with --follow from the latest; --from overrides both.

    With --follow it waits for brokers and for a topic that are not there yet.
    """
    quiet_kafka_logs()
    position = parse_position(from_ or ("latest" if follow else "earliest"), now=datetime.now(UTC))
    _check_position(position, group)
    if group is not None and (partition or to or key is not None):
        raise BadInputError("--partition, --to and --key do not go with --group")
    end = _parse_end(to, follow=follow)
    target = find_cluster(data_dir, cluster, bootstrap_server)
    signal.signal(signal.SIGTERM, _interrupt)
    with contextlib.suppress(KeyboardInterrupt), explain_kafka_errors(target):
        open_consumer = _open_when_there if follow else _open
        consumer = open_consumer(target, topic, group, position, partition, isolation_level)
        try:
            stop_at = None if follow else _end_offsets(consumer, topic, end)
            wanted = _Wanted(output, max_messages, None if key is None else key.encode())
            _print_records(consumer, wanted, stop_at)
        finally:
            # The member leaves its group, so that others need not wait for its session timeout.
            consumer.close()


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def record_json(record: Any) -> str:
    """Encode a record as one line of JSON; non-UTF-8 data becomes base64 under a separate name."""
    fields: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": _moment(record.timestamp),
    }
    for name, data in (("key", record.key), ("value", record.value)):
        fields |= _text_or_base64(name, data)
    if record.headers:
        headers: dict[str, list[Any]] = {}
        for name, data in record.headers:
            headers.setdefault(name, []).append(_header_value(data))
        # A name that comes several times has a list.
        fields["headers"] = {
            name: found if len(found) > 1 else found[0] for name, found in headers.items()
        }
    return json.dumps(fields, ensure_ascii=False)


def record_text(record: Any) -> str:
    """Format a record as columns; missing values are -."""
    key, value = (
        "-" if data is None else data.decode(errors="replace")
        for data in (record.key, record.value)
    )
    headers = ",".join(
        f"{name}={'' if data is None else data.decode(errors='replace')}"
        for name, data in record.headers or ()
    )
    place = (str(record.partition), str(record.offset), _moment(record.timestamp))
    return "\t".join([*place, key, value, *([headers] if headers else [])])


def _moment(timestamp_ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)  # beyond the year 9999
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _header_value(data: bytes | None) -> str | dict[str, str | None] | None:
    value = _text_or_base64("value", data)
    return value["value"] if "value" in value else {"base64": value["value_base64"]}


def _text_or_base64(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _parse_end(to: str | None, *, follow: bool) -> Position | None:
    if to is None:
        return None
    end = parse_position(to, now=datetime.now(UTC))
    if end.kind is PositionKind.SHIFT:
        raise BadInputError("--to: a shift has no meaning here")
    if follow:
        raise BadInputError("say either --follow or --to")
    return end


def _check_position(position: Position, group: str | None) -> None:
    if position.kind is PositionKind.SHIFT:
        raise BadInputError("--from: a shift has no meaning here; see `headrace groups reset`")
    if group is not None and position.kind not in {PositionKind.EARLIEST, PositionKind.LATEST}:
        raise BadInputError(
            "--from: a group goes on from its committed offsets; move them with "
            "`headrace groups reset`"
        )


def _open_when_there(
    target: Target,
    topic: str,
    group: str | None,
    position: Position,
    only: list[int] | None = None,
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> Any:
    """Open a consumer as soon as brokers answer and know the topic; report missing ones once."""
    said = ""
    while True:
        try:
            with explain_kafka_errors(target):
                return _open(target, topic, group, position, only, isolation_level)
        except CommandError as error:
            if str(error) != said:
                said = str(error)
                sys.stderr.write(f"waiting: {said}\n")
                sys.stderr.flush()
            time.sleep(RETRY_SECONDS)


def _open(
    target: Target,
    topic: str,
    group: str | None,
    position: Position,
    only: list[int] | None = None,
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> Any:
    from kafka import KafkaConsumer, TopicPartition

    from headrace_cli.codecs import install_codecs

    install_codecs()
    check_advertised(target)
    consumer = KafkaConsumer(
        **target.client_settings,
        group_id=group,
        enable_auto_commit=False,
        isolation_level=isolation_level.value,
        auto_offset_reset="latest" if position.kind is PositionKind.LATEST else "earliest",
        allow_auto_create_topics=False,
        bootstrap_timeout_ms=BOOTSTRAP_TIMEOUT_MS,
    )
    if topic not in consumer.topics():
        consumer.close()
        raise CommandError(f"topic {topic} does not exist")
    if group is not None:
        consumer.subscribe([topic])
        return consumer
    known = consumer.partitions_for_topic(topic)
    if unknown := set(only or ()) - known:
        consumer.close()
        raise BadInputError(f"topic {topic} has no partition {min(unknown)}")
    partitions = [TopicPartition(topic, index) for index in sorted(only or known)]
    consumer.assign(partitions)
    _seek(consumer, partitions, position)
    return consumer


def _seek(consumer: Any, partitions: list[Any], position: Position) -> None:
    for partition, offset in _offsets_at(consumer, partitions, position).items():
        consumer.seek(partition, offset)


def _offsets_at(consumer: Any, partitions: list[Any], position: Position) -> dict[Any, int]:
    earliest = consumer.beginning_offsets(partitions)
    latest = consumer.end_offsets(partitions)
    found = {}
    if position.kind is PositionKind.TIMESTAMP:
        found = consumer.offsets_for_times(dict.fromkeys(partitions, position.value))
    offsets: dict[Any, int] = {}
    for partition in partitions:
        match position.kind:
            case PositionKind.EARLIEST:
                offset = earliest[partition]
            case PositionKind.OFFSET:
                offset = min(max(position.value, earliest[partition]), latest[partition])
            case PositionKind.TIMESTAMP if found.get(partition) is not None:
                offset = found[partition].offset
            case _:
                offset = latest[partition]
        offsets[partition] = offset
    return offsets


def _end_offsets(consumer: Any, topic: str, end: Position | None) -> dict[Any, int]:
    from kafka import TopicPartition

    partitions = [TopicPartition(topic, index) for index in consumer.partitions_for_topic(topic)]
    if end is not None:
        return _offsets_at(consumer, partitions, end)
    ends: dict[Any, int] = consumer.end_offsets(partitions)
    return ends


@dataclass(frozen=True)
class _Wanted:
    """What is printed, how, and how much of it."""

    output: RecordFormat
    max_messages: int | None
    key: bytes | None


def _print_records(consumer: Any, wanted: _Wanted, stop_at: dict[Any, int] | None) -> None:
    grouped = consumer.config["group_id"] is not None
    committed: dict[Any, int] = {}
    most, printed = wanted.max_messages, 0
    while (most is None or printed < most) and not _is_done(consumer, stop_at):
        # With a key, most records that are read are not printed.
        limit = None if most is None or wanted.key is not None else most - printed
        for partition, records in consumer.poll(timeout_ms=POLL_MS, max_records=limit).items():
            end = None if stop_at is None or grouped else stop_at.get(partition)
            for record in records:
                is_over = end is not None and record.offset >= end
                is_enough = most is not None and printed >= most
                if is_over or is_enough or (wanted.key is not None and record.key != wanted.key):
                    continue
                _write(record, wanted.output)
                printed += 1
            sys.stdout.flush()
        if grouped:
            # After printing: a record is printed at least once, never lost.
            committed = _commit(consumer, committed)


def _commit(consumer: Any, committed: dict[Any, int]) -> dict[Any, int]:
    """Commit the positions that have changed; return all of them.

    Those of partitions without records, too: others shall not begin there anew, or wait for what a
    transaction aborted.
    """
    from kafka.errors import (
        CommitFailedError,
        IllegalGenerationError,
        RebalanceInProgressError,
        UnknownMemberIdError,
    )
    from kafka.structs import OffsetAndMetadata

    positions = {
        partition: position
        for partition in consumer.assignment()
        if (position := consumer.position(partition, timeout_ms=POLL_MS)) is not None
    }
    changed = {
        partition: OffsetAndMetadata(position, "", -1)
        for partition, position in positions.items()
        if committed.get(partition) != position
    }
    if not changed:
        return positions
    # After a rebalance the next owner of the partition reads and prints these once more.
    with contextlib.suppress(
        CommitFailedError, IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError
    ):
        consumer.commit(changed)
        return positions
    return {}


def _is_done(consumer: Any, stop_at: dict[Any, int] | None) -> bool:
    if stop_at is None:
        return False
    assigned = consumer.assignment()
    return bool(assigned) and all(
        consumer.position(partition) >= stop_at.get(partition, 0) for partition in assigned
    )


def _write(record: Any, output: RecordFormat) -> None:
    if output is RecordFormat.JSON:
        sys.stdout.write(record_json(record) + "\n")
    elif output is RecordFormat.FULL:
        sys.stdout.write(record_text(record) + "\n")
    else:
        sys.stdout.buffer.write((record.value or b"") + b"\n")
