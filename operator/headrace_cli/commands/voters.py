"""`headrace cluster voters list|add|remove`: who votes in the metadata quorum (KIP-853)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli.errors import CommandError
from headrace_cli.kubernetes.choice import refuse_kubernetes
from headrace_cli.options import (
    BootstrapServers,
    ClusterName,
    DataDirectory,
    Output,
    OutputFormat,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_operator.quorum import QuorumReplica, QuorumState

__all__ = ["voters_app"]

CONTROLLER_LISTENER = "CONTROLLER"
Node = Annotated[int, typer.Argument(help="Id of the controller.")]

voters_app = typer.Typer(help="Voters of the metadata quorum.", no_args_is_help=True)


@voters_app.command(name="list")
def list_voters(
    *,
    output: Output = OutputFormat.TABLE,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Show who leads, votes and follows, each with the directory id of its disk."""
    from headrace_cli.output import as_document, print_table, print_title

    def show(admin: Any, state: QuorumState) -> None:
        del admin
        end = max((each.end_offset for each in state.voters), default=0)
        rows = [
            {
                "NODE": str(each.node_id),
                "ROLE": "leader" if each.node_id == state.leader_id and votes else role,
                "DIRECTORY": str(each.directory_id),
                "LAG": str(max(0, end - each.end_offset)),
            }
            for votes, role, replicas in (
                (True, "voter", state.voters),
                (False, "observer", state.observers),
            )
            for each in replicas
        ]
        with as_document(output):
            print_title("Replicas", is_shown=False)
            print_table(rows)

    _with_quorum(data_dir, cluster, bootstrap_server, show)


@voters_app.command(name="add")
def add(
    node: Node,
    *,
    listener: Annotated[
        str | None,
        typer.Option(help="host:port of its controller listener, where no local cluster knows it."),
    ] = None,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Let a controller vote that follows the log. A vote of its former disk is taken away first."""
    from headrace_operator.quorum import add_voter, remove_voter

    refuse_kubernetes("the roles of pools, which the operator follows,")

    def change(admin: Any, state: QuorumState) -> None:
        joining = _only(state.observers, node, "follows the log as an observer")
        address = listener or _local_listener(data_dir, cluster, node)
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise CommandError(f"--listener {address} is not host:port")
        for former in (each for each in state.voters if each.node_id == node):
            remove_voter(_addresses(admin), former)
        add_voter(_addresses(admin), joining, (CONTROLLER_LISTENER, host, int(port)))
        typer.echo(f"node {node} votes", err=True)

    _with_quorum(data_dir, cluster, bootstrap_server, change)


@voters_app.command(name="remove")
def remove(
    node: Node,
    *,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Let a voter only follow the log."""
    from headrace_operator.quorum import remove_voter

    refuse_kubernetes("the roles of pools, which the operator follows,")

    def change(admin: Any, state: QuorumState) -> None:
        remove_voter(_addresses(admin), _only(state.voters, node, "votes"))
        typer.echo(f"node {node} does not vote any more", err=True)

    _with_quorum(data_dir, cluster, bootstrap_server, change)


def _with_quorum(
    data_directory: Path,
    cluster: str | None,
    bootstrap_servers: str | None,
    do: Callable[[Any, QuorumState], None],
) -> None:
    from headrace_cli.clients import admin_client, find_cluster
    from headrace_operator.quorum import QuorumError, describe_quorum

    target = find_cluster(data_directory, cluster, bootstrap_servers)
    with admin_client(target) as admin:
        try:
            do(admin, describe_quorum(admin))
        except QuorumError as error:
            raise CommandError(str(error)) from error


def _only(replicas: tuple[QuorumReplica, ...], node: int, what: str) -> QuorumReplica:
    for each in replicas:
        if each.node_id == node:
            return each
    known = ", ".join(str(each.node_id) for each in replicas) or "nobody"
    raise CommandError(f"node {node} is not one that {what}: {known}")


def _addresses(admin: Any) -> list[tuple[str, int]]:
    brokers = admin.describe_cluster()["brokers"]
    return [(each["host"], each["port"]) for each in brokers if not each.get("is_fenced")]


def _local_listener(data_directory: Path, cluster: str | None, node: int) -> str:
    from headrace_cli.clients import find_layout
    from headrace_operator.local.ports import load_ports

    ports = load_ports(find_layout(data_directory, cluster).ports_file)
    port = ports.get(f"{node}.controller")
    if port is None:
        raise CommandError(f"where is node {node}? name its --listener host:port")
    return f"127.0.0.1:{port}"
