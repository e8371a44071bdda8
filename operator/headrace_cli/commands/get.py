"""`headrace get topics|groups|brokers|cluster`."""

from __future__ import annotations

import contextlib
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli.errors import CommandError
from headrace_cli.options import (
    BootstrapServers,
    ClusterName,
    DataDirectory,
    Output,
    OutputFormat,
)

if TYPE_CHECKING:
    from headrace_cli.clients import Target
    from headrace_cli.output import Item

__all__ = ["Kind", "get"]


WATCH_SECONDS = 1.0


class Kind(StrEnum):
    """What can be asked for; singular and plural, as kubectl takes them."""

    TOPICS = "topics"
    TOPIC = "topic"
    GROUPS = "groups"
    GROUP = "group"
    BROKERS = "brokers"
    BROKER = "broker"
    CLUSTER = "cluster"


def get(  # noqa: PLR0913 - the options of a command line
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    name: Annotated[str | None, typer.Argument(help="Only this one.")] = None,
    *,
    output: Output = OutputFormat.TABLE,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Go on, and print what changes. Ctrl-C ends it.")
    ] = False,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """List what the brokers have."""
    from headrace_cli.clients import ask, find_cluster
    from headrace_cli.output import print_items

    target = find_cluster(data_dir, cluster, bootstrap_server)
    if watch:
        with contextlib.suppress(KeyboardInterrupt):
            _watch(kind, name, target, output)
        return
    items = ask(target, lambda admin: _load(kind, admin, target))
    if name is not None:
        items = [item for item in items if item.name == name]
        if not items:
            raise CommandError(f"{kind.value.removesuffix('s')} {name} does not exist")
    print_items(items, output, is_single=name is not None or kind is Kind.CLUSTER)


def _watch(kind: Kind, name: str | None, target: Target, output: OutputFormat) -> None:
    """Print objects, then again each that changes; those that go are told of on standard error."""
    from headrace_cli.clients import ask
    from headrace_cli.output import print_items, print_table, row_of

    known: dict[str, Item] = {}
    widths: dict[str, int] = {}
    while True:
        loaded = ask(target, lambda admin: _load(kind, admin, target))
        items = {item.name: item for item in loaded if name in (None, item.name)}
        changed = [item for item in items.values() if item != known.get(item.name)]
        if output in {OutputFormat.TABLE, OutputFormat.WIDE}:
            print_table([row_of(item, output) for item in changed], widths=widths)
        else:
            for item in changed:
                print_items([item], output, is_single=True)
        sys.stdout.flush()
        for gone in known.keys() - items.keys():
            typer.echo(f"{kind.value.removesuffix('s')} {gone} is gone", err=True)
        known = items
        time.sleep(WATCH_SECONDS)


def _load(kind: Kind, admin: Any, target: Target) -> list[Item]:
    from headrace_cli import objects

    match kind:
        case Kind.TOPICS | Kind.TOPIC:
            return objects.topic_items(admin, objects.load_topics(admin), target)
        case Kind.GROUPS | Kind.GROUP:
            return objects.group_items(objects.load_groups(admin), target)
        case Kind.BROKERS | Kind.BROKER:
            return objects.broker_items(admin, target)
        case Kind.CLUSTER:
            return [objects.cluster_item(admin, target)]
