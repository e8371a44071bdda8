"""`headrace cluster dirs`: the log directories of brokers, and moves of replicas between them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli.errors import BadInputError, CommandError
from headrace_cli.options import BootstrapServers, ClusterName, DataDirectory, Output, OutputFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_operator.plan.directories import Directory, DirectoryMove

__all__ = ["directories"]

POLL_SECONDS = 0.5
_MEGABYTE = 1_000_000


def directories(  # noqa: PLR0913 - each is an option of the command line
    *,
    leave: Annotated[
        str | None,
        typer.Option("--leave", help="Move every replica off the log directory of this path."),
    ] = None,
    balance: Annotated[
        bool, typer.Option("--balance", help="Spread each broker's bytes over its directories.")
    ] = False,
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it; without this, only show what would move.")
    ] = False,
    wait: Annotated[
        bool,
        typer.Option("--wait/--no-wait", help="Wait until it is done; the brokers go on anyway."),
    ] = True,
    output: Output = OutputFormat.TABLE,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Show brokers' log directories; leave one, or spread replicas over them."""
    from headrace_cli.clients import ask, find_cluster
    from headrace_operator.log_dirs import describe_directories

    if leave is not None and balance:
        raise BadInputError("choose one of --leave and --balance")
    if execute and leave is None and not balance:
        raise BadInputError("--execute goes with --leave PATH or --balance")
    target = find_cluster(data_dir, cluster, bootstrap_server)
    found: list[Directory] = ask(target, describe_directories)
    if leave is None and not balance:
        _print_directories(found, output)
        return
    moves = _planned(found, leave)
    _print_moves(moves, output)
    if moves and not execute:
        typer.echo("dry run: nothing was changed; add --execute to do it", err=True)
    elif moves:
        _carry_out(target, moves, wait=wait)


def _planned(found: Sequence[Directory], leave: str | None) -> list[DirectoryMove]:
    from headrace_operator.plan.directories import plan_balance, plan_leaving

    if leave is None:
        return plan_balance(found)
    if leave not in {each.path for each in found}:
        raise BadInputError(
            f"--leave {leave}: no broker has it; there are {sorted({each.path for each in found})}"
        )
    try:
        return plan_leaving(found, leave)
    except ValueError as error:
        raise CommandError(str(error)) from error


def _carry_out(target: Any, moves: Sequence[DirectoryMove], *, wait: bool) -> None:
    from headrace_cli.clients import ask
    from headrace_operator.log_dirs import ask_moves, describe_directories, is_done

    refused: list[str] = ask(target, lambda admin: ask_moves(admin, moves))
    if refused:
        raise CommandError("; ".join(refused))
    typer.echo(f"{len(moves)} replicas move", err=True)
    while wait and not is_done(moves, ask(target, describe_directories)):
        time.sleep(POLL_SECONDS)
    if wait:
        typer.echo("all replicas are where they should be", err=True)


def _print_directories(found: Sequence[Directory], output: OutputFormat) -> None:
    import msgspec

    from headrace_cli.output import print_document, print_table

    if output in {OutputFormat.JSON, OutputFormat.YAML}:
        print_document(msgspec.to_builtins(found), output)
        return
    print_table(
        [
            {
                "BROKER": str(each.broker),
                "DIRECTORY": each.path,
                "STATE": "online" if each.is_online else "offline",
                "REPLICAS": str(sum(not replica.is_future for replica in each.replicas)),
                "ARRIVING": str(sum(replica.is_future for replica in each.replicas)),
                "MB": f"{each.bytes / _MEGABYTE:.1f}",
                "FREE MB": "?" if each.free_bytes < 0 else f"{each.free_bytes / _MEGABYTE:.0f}",
            }
            for each in found
        ]
    )


def _print_moves(moves: Sequence[DirectoryMove], output: OutputFormat) -> None:
    import msgspec

    from headrace_cli.output import print_document, print_table

    if output in {OutputFormat.JSON, OutputFormat.YAML}:
        print_document(msgspec.to_builtins(moves), output)
        return
    if not moves:
        typer.echo("nothing to do", err=True)
        return
    print_table(
        [
            {
                "BROKER": str(each.broker),
                "PARTITION": f"{each.topic}-{each.partition}",
                "FROM": each.source,
                "TO": each.target,
                "MB": f"{each.bytes / _MEGABYTE:.1f}",
            }
            for each in moves
        ]
    )
