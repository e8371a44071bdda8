"""`headrace transactions list|describe|abort`: what `kafka-transactions` does, and safer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli.errors import BadInputError, CommandError
from headrace_cli.options import BootstrapServers, ClusterName, DataDirectory, Output, OutputFormat

if TYPE_CHECKING:
    from headrace_cli.clients import Target
    from headrace_cli.output import Item
    from headrace_operator.transactions import OpenTransaction

__all__ = ["transactions_app"]

#: An error code of the brokers without a name in kafka-python.
INVALID_REGULAR_EXPRESSION = 128
#: How long a partition's former producer may take to be fenced.
FENCE_TIMEOUT_MS = 60_000
#: States in which a transaction is open.
_OPEN = ["Ongoing", "PrepareCommit", "PrepareAbort"]

transactions_app = typer.Typer(help="Work on transactions.", no_args_is_help=True)


@transactions_app.command(name="list")
def list_transactions(  # noqa: PLR0913 - each is an option of the command line
    *,
    state: Annotated[
        list[str] | None,
        typer.Option(help="Only in this state: Empty, Ongoing, PrepareCommit, …; repeatable."),
    ] = None,
    producer_id: Annotated[
        list[int] | None, typer.Option(help="Only of this producer id; repeatable.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Only those that are open for so long: 90s, 15m.")
    ] = None,
    pattern: Annotated[
        str | None, typer.Option(help="Only ids that this regular expression (RE2) matches.")
    ] = None,
    hanging: Annotated[
        bool,
        typer.Option(
            "--hanging",
            help="Those open in a partition (for --older-than, else 15m) that no coordinator ends.",
        ),
    ] = False,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="With --hanging: only in this topic.")
    ] = None,
    output: Output = OutputFormat.TABLE,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """List transactional ids and their states, or with --hanging what waits for an abort."""
    from kafka.errors import KafkaError

    from headrace_cli.clients import ask, find_cluster
    from headrace_cli.output import print_items
    from headrace_cli.positions import parse_duration

    if hanging and (state or producer_id or pattern):
        raise BadInputError("--hanging goes with --topic and --older-than only")
    if topic is not None and not hanging:
        raise BadInputError("--topic is for --hanging: a transaction may be in many topics")
    age_ms = None if older_than is None else int(parse_duration(older_than).total_seconds() * 1000)
    _check_states(state or [])

    def question(admin: Any) -> list[Item]:
        if hanging:
            return _hanging_items(admin, topic, age_ms)
        try:
            listed = admin.list_transactions(
                # An id without a transaction is as old as time to the protocol.
                state_filters=state or (_OPEN if age_ms is not None else None),
                producer_id_filters=producer_id,
                duration_filter_ms=age_ms,
                transactional_id_pattern=pattern,
            )
        except KafkaError as error:
            if error.errno == INVALID_REGULAR_EXPRESSION:
                raise BadInputError(f"--pattern {pattern}: no regular expression (RE2)") from error
            raise
        return _listed_items(listed)

    target = find_cluster(data_dir, cluster, bootstrap_server)
    print_items(ask(target, question), output, is_single=False)


@transactions_app.command(name="describe")
def describe(
    transactional_id: Annotated[str, typer.Argument(help="Transactional id.")],
    *,
    output: Output = OutputFormat.TABLE,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Show one transactional id: its producer, its state, and where its transaction is open."""
    from headrace_cli.clients import ask, find_cluster
    from headrace_cli.output import print_items

    target = find_cluster(data_dir, cluster, bootstrap_server)
    item = ask(target, lambda admin: _described_item(admin, transactional_id))
    print_items([item], output, is_single=True)


@transactions_app.command(name="abort")
def abort(  # noqa: PLR0913 - each is an option of the command line
    transactional_id: Annotated[
        str | None, typer.Argument(help="The id whose transaction its coordinator aborts.")
    ] = None,
    *,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Topic of a hanging transaction.")
    ] = None,
    partition: Annotated[int | None, typer.Option(help="Its partition.")] = None,
    start_offset: Annotated[int | None, typer.Option(help="The offset that it begins at.")] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it; without this, only show what would end.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Mark a partition though its coordinator would end it."),
    ] = False,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Abort a transaction: by its id, or where none knows it by topic, partition and offset.

    By its id, the coordinator aborts it everywhere and fences its producer. By its place, one
    partition gets an abort marker past the coordinator, which tears a live transaction apart:
    one that a coordinator knows is refused without --force.
    """
    from headrace_cli.clients import admin_client, find_cluster

    place = (topic, partition, start_offset)
    if (transactional_id is None) == (place == (None, None, None)):
        raise BadInputError("name an id, or --topic, --partition and --start-offset")
    target = find_cluster(data_dir, cluster, bootstrap_server)
    with admin_client(target) as admin:
        if transactional_id is not None:
            _abort_id(admin, target, transactional_id, execute=execute)
        elif topic is None or partition is None or start_offset is None:
            raise BadInputError("--topic, --partition and --start-offset go together")
        else:
            found = _open_at(admin, topic, partition, start_offset)
            _abort_marked(admin, found, execute=execute, force=force)


def _check_states(states: list[str]) -> None:
    from kafka.admin import TransactionState

    known = [each.value for each in TransactionState]
    for state in states:
        if state not in known:
            raise BadInputError(f"--state {state}: no state; there are {', '.join(known)}")


def _listed_items(listed: Any) -> list[Item]:
    from headrace_cli.output import Item

    rows = sorted(
        (each.transactional_id, broker, each) for broker, found in listed.items() for each in found
    )
    return [
        Item(
            kind="Transaction",
            name=name,
            columns={
                "PRODUCER": str(each.producer_id),
                "STATE": each.state.value,
                "COORDINATOR": str(broker),
            },
            document={
                "transactionalId": name,
                "producerId": each.producer_id,
                "state": each.state.value,
                "coordinator": broker,
            },
        )
        for name, broker, each in rows
    ]


def _hanging_items(admin: Any, topic: str | None, age_ms: int | None) -> list[Item]:
    from headrace_operator.transactions import HANGING_AFTER_MS, find_hanging

    now_ms = int(time.time() * 1000)
    after_ms = HANGING_AFTER_MS if age_ms is None else age_ms
    found = find_hanging(admin, now_ms=now_ms, topic=topic, after_ms=after_ms)
    return [_open_item(each, now_ms) for each in found]


def _open_item(found: OpenTransaction, now_ms: int) -> Item:
    from headrace_cli.output import Item

    topic, partition = found.partition
    age_seconds = max(0, now_ms - found.last_timestamp_ms) // 1000
    return Item(
        kind="OpenTransaction",
        name=f"{topic}-{partition}",
        columns={
            "START-OFFSET": str(found.start_offset),
            "PRODUCER": str(found.producer_id),
            "EPOCH": str(found.producer_epoch),
            "LAST-WRITE": f"{age_seconds} s ago",
        },
        document={
            "topic": topic,
            "partition": partition,
            "startOffset": found.start_offset,
            "producerId": found.producer_id,
            "producerEpoch": found.producer_epoch,
            "coordinatorEpoch": found.coordinator_epoch,
            "lastTimestampMs": found.last_timestamp_ms,
        },
    )


def _described_item(admin: Any, name: str) -> Item:
    from headrace_cli.output import Item

    found = _describe_id(admin, name)
    began_ms = found.transaction_start_time_ms
    age_seconds = max(0, int(time.time() * 1000) - began_ms) // 1000
    partitions = sorted((each.topic, each.partition) for each in found.topic_partitions)
    return Item(
        kind="Transaction",
        name=name,
        columns={
            "PRODUCER": str(found.producer_id),
            "EPOCH": str(found.producer_epoch),
            "STATE": found.state.value,
            "COORDINATOR": str(found.coordinator_id),
            "TIMEOUT": f"{found.transaction_timeout_ms} ms",
            "OPEN-FOR": "-" if began_ms < 0 else f"{age_seconds} s",
            "PARTITIONS": ",".join(f"{topic}-{index}" for topic, index in partitions) or "-",
        },
        document={
            "transactionalId": name,
            "producerId": found.producer_id,
            "producerEpoch": found.producer_epoch,
            "state": found.state.value,
            "coordinator": found.coordinator_id,
            "timeoutMs": found.transaction_timeout_ms,
            "startTimeMs": began_ms,
            "partitions": [{"topic": topic, "partition": index} for topic, index in partitions],
        },
    )


def _describe_id(admin: Any, name: str) -> Any:
    from kafka.errors import TransactionalIdNotFoundError

    try:
        return admin.describe_transactions([name])[name]
    except TransactionalIdNotFoundError as error:
        raise CommandError(
            f"transactional id {name} does not exist; `headrace transactions list` shows those"
            " that do"
        ) from error


def _abort_id(admin: Any, target: Target, name: str, *, execute: bool) -> None:
    """Have the id's coordinator abort: initialising the id ends its open transaction."""
    from kafka import KafkaProducer
    from kafka.admin import TransactionState

    from headrace_cli.output import print_items

    print_items([_described_item(admin, name)], OutputFormat.TABLE, is_single=True)
    if _describe_id(admin, name).state is not TransactionState.ONGOING:
        raise CommandError(f"transactional id {name} has no transaction that can be aborted")
    if not execute:
        typer.echo("dry run: nothing was changed; add --execute to do it", err=True)
        return
    producer = KafkaProducer(
        **target.client_settings,
        transactional_id=name,
        max_block_ms=FENCE_TIMEOUT_MS,
    )
    try:
        producer.init_transactions()
    finally:
        producer.close()
    typer.echo(f"the transaction of {name} is aborted, and its producer fenced", err=True)


def _open_at(admin: Any, topic: str, partition: int, start_offset: int) -> OpenTransaction:
    from headrace_operator.transactions import open_transactions

    found = open_transactions(admin, [(topic, partition)])
    for each in found:
        if each.start_offset == start_offset:
            return each
    there = ", ".join(str(each.start_offset) for each in found) or "none"
    raise CommandError(
        f"no transaction begins at offset {start_offset} of {topic}-{partition}; open: {there}"
    )


def _abort_marked(admin: Any, found: OpenTransaction, *, execute: bool, force: bool) -> None:
    from headrace_cli.output import print_items
    from headrace_operator.transactions import is_known_to_coordinator, mark_aborted

    item = _open_item(found, int(time.time() * 1000))
    print_items([item], OutputFormat.TABLE, is_single=True)
    if not force and is_known_to_coordinator(admin, found):
        raise CommandError(
            "its coordinator knows this transaction and will end it; abort it whole by its id, or"
            " mark this partition alone with --force"
        )
    if not execute:
        typer.echo("dry run: nothing was changed; add --execute to do it", err=True)
        return
    mark_aborted(admin, found)
    typer.echo(f"{item.name}: the transaction at {found.start_offset} is aborted", err=True)
