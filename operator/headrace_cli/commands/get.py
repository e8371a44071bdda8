"""`headrace get topics|groups|brokers|cluster`."""

from __future__ import annotations

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


class Kind(StrEnum):
    """What can be asked for; singular and plural, as kubectl takes them."""

    TOPICS = "topics"
    TOPIC = "topic"
    GROUPS = "groups"
    GROUP = "group"
    BROKERS = "brokers"
    BROKER = "broker"
    CLUSTER = "cluster"


def get(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    name: Annotated[str | None, typer.Argument(help="Only this one.")] = None,
    *,
    output: Output = OutputFormat.TABLE,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """List what the brokers have."""
    from headrace_cli.clients import ask, find_cluster
    from headrace_cli.output import print_items

    target = find_cluster(data_dir, cluster, bootstrap_server)
    items = ask(target, lambda admin: _load(kind, admin, target))
    if name is not None:
        items = [item for item in items if item.name == name]
        if not items:
            raise CommandError(f"{kind.value.removesuffix('s')} {name} does not exist")
    print_items(items, output, is_single=name is not None or kind is Kind.CLUSTER)


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
