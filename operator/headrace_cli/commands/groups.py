"""`headrace groups reset`: move a consumer group to another position."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, assert_never

import typer

from headrace_cli.errors import CommandError
from headrace_cli.options import BootstrapServers, ClusterName, DataDirectory, GroupName
from headrace_cli.positions import Position, PositionKind, parse_position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_cli.clients import Target
    from headrace_operator.plan import ObservedGroup, TopicPartition

__all__ = ["groups_app"]

EMPTY_STATES = frozenset({"Empty", "Dead", ""})

groups_app = typer.Typer(help="Work on consumer groups.", no_args_is_help=True)


@groups_app.callback()
def groups() -> None:
    """Work on consumer groups."""


@groups_app.command(name="reset")
def reset(  # noqa: PLR0913 - each is an option of the command line
    group: GroupName,
    *,
    topic: Annotated[str, typer.Option("--topic", "-t", help="Topic whose offsets move.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="earliest, latest, 2026-01-31T10:00:00Z, 15m (ago), offset:42, shift:-10.",
        ),
    ],
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it; without this, only show what would change.")
    ] = False,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Show, and with --execute make, a move of a group's offsets. The group must be empty."""
    from headrace_cli.clients import admin_client, find_cluster
    from headrace_cli.objects import load_groups

    position = parse_position(to, now=datetime.now(UTC))
    target = find_cluster(data_dir, cluster, bootstrap_server)
    with admin_client(target.bootstrap_servers) as admin:
        observed = load_groups(admin, [group])[group]
        if observed.state not in EMPTY_STATES:
            raise CommandError(
                f"group {group} is {observed.state} with {len(observed.members)} members: "
                "stop them first; Kafka moves only groups that nobody reads in"
            )
        wanted = target_offsets(admin, observed, topic, position)
        _print_changes(observed, wanted)
        if not execute:
            typer.echo("dry run: nothing was changed; add --execute to do it", err=True)
            return
        _commit(admin, group, wanted)
    typer.echo(f"group {group} moved; the column CURRENT above undoes it", err=True)
    _warn_of_checkpoint(target, group)


def target_offsets(
    admin: Any, group: ObservedGroup, topic: str, position: Position
) -> dict[TopicPartition, int]:
    """Find the new offset of every partition, inside what the partition has."""
    from headrace_cli.objects import EARLIEST, LATEST, load_topics
    from headrace_operator.observe import list_offsets

    found = load_topics(admin).get(topic)
    if found is None:
        raise CommandError(f"topic {topic} does not exist")
    keys = [(topic, index) for index in range(found.partitions)]
    starts = list_offsets(admin, dict.fromkeys(keys, EARLIEST))
    ends = list_offsets(admin, dict.fromkeys(keys, LATEST))
    match position.kind:
        case PositionKind.EARLIEST:
            wanted = starts
        case PositionKind.LATEST:
            wanted = ends
        case PositionKind.OFFSET:
            wanted = dict.fromkeys(keys, position.value)
        case PositionKind.SHIFT:
            # What was never committed has nowhere to be shifted from.
            current = {key: group.offsets[key] for key in keys if key in group.offsets}
            wanted = {key: offset + position.value for key, offset in current.items()}
        case PositionKind.TIMESTAMP:
            found_at = list_offsets(admin, dict.fromkeys(keys, position.value))
            # Past the last record is the end, as in Kafka's own tool.
            wanted = {key: found_at.get(key, ends[key]) for key in keys}
        case _:
            assert_never(position.kind)
    return {
        key: min(max(offset, starts.get(key, 0)), ends.get(key, offset))
        for key, offset in sorted(wanted.items())
    }


def _print_changes(group: ObservedGroup, wanted: Mapping[TopicPartition, int]) -> None:
    from headrace_cli.output import print_table

    rows = []
    for (topic, index), offset in wanted.items():
        current = group.offsets.get((topic, index))
        change = "-" if current is None else f"{offset - current:+d}"
        rows.append(
            {
                "TOPIC": topic,
                "PARTITION": str(index),
                "CURRENT": "-" if current is None else str(current),
                "NEW": str(offset),
                "CHANGE": "none" if change == "+0" else change,
            }
        )
    print_table(rows)


def _commit(admin: Any, group: str, wanted: Mapping[TopicPartition, int]) -> None:
    from kafka import TopicPartition
    from kafka.structs import OffsetAndMetadata

    offsets = {
        TopicPartition(*key): OffsetAndMetadata(offset, "headrace groups reset", -1)
        for key, offset in wanted.items()
    }
    results = admin.alter_group_offsets(group, offsets)
    refused = [
        f"{partition.topic}-{partition.partition}: {error.__name__}"
        for partition, error in results.items()
        if getattr(error, "errno", 0)
    ]
    if refused:
        raise CommandError("refused: " + ", ".join(refused))


def _warn_of_checkpoint(target: Target, group: str) -> None:
    """Say what a reset cannot do: Spark's position is its checkpoint, the group only mirrors it."""
    from headrace_operator.local.desired import DesiredStore
    from headrace_operator.resources import ConsumerGroup

    if target.layout is None:
        return
    for resource in DesiredStore(target.layout).load():
        if (
            isinstance(resource, ConsumerGroup)
            and resource.group_id == group
            and resource.spec.target_ref is not None
            and resource.spec.target_ref.kind == "SparkApplication"
        ):
            sys.stderr.write(
                f"note: SparkApplication {resource.spec.target_ref.name} reads on from its "
                f"checkpoint ({target.layout.jobs_directory}), not from the group\n"
            )
