"""`headrace cluster plan|rebalance|drain`: where replicas and leaders should be."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli.errors import CommandError
from headrace_cli.options import ClusterName, DataDirectory

if TYPE_CHECKING:
    from headrace_cli.clients import Target
    from headrace_operator.balance import BalancePlan

__all__ = ["cluster_app"]

POLL_SECONDS = 0.5
BYTES_PER_MEGABYTE = 1_000_000

Execute = Annotated[
    bool, typer.Option("--execute", help="Do it; without this, only show what would change.")
]
Approved = Annotated[
    str | None,
    typer.Option("--plan", help="Do it only if it still is the plan of this hash."),
]

cluster_app = typer.Typer(help="Balance and drain brokers.", no_args_is_help=True)


@cluster_app.command(name="plan")
def plan(*, data_dir: DataDirectory = Path(".headrace"), cluster: ClusterName = None) -> None:
    """Show what `rebalance` would do."""
    _print_plan(_fetch(_target(data_dir, cluster)))


@cluster_app.command(name="rebalance")
def rebalance(
    *,
    execute: Execute = False,
    approved: Approved = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Spread replicas and leaders evenly over racks and brokers."""
    target = _target(data_dir, cluster)
    planned = _fetch(target)
    _print_plan(planned)
    _execute_or_tell(target, planned, execute=execute, approved=approved)


@cluster_app.command(name="drain")
def drain(
    broker: Annotated[int, typer.Argument(help="Id of the broker that is to be emptied.")],
    *,
    execute: Execute = False,
    approved: Approved = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Move every replica away from a broker. It goes on running, and new topics may come to it."""
    target = _target(data_dir, cluster)
    planned = _fetch(target, broker)
    _print_plan(planned)
    if planned.reasons:
        raise CommandError(f"broker {broker} cannot be drained: " + "; ".join(planned.reasons))
    _execute_or_tell(target, planned, execute=execute, approved=approved)


def _target(data_directory: Path, cluster: str | None) -> Target:
    from headrace_cli.clients import find_cluster

    return find_cluster(data_directory, cluster, None)


def _fetch(target: Target, drained: int | None = None) -> BalancePlan:
    from headrace_operator.balance import BalanceError, fetch_plan

    known = target.state.brokers if target.state else []
    try:
        return fetch_plan([each.http for each in known if each.http], drained)
    except BalanceError as error:
        raise CommandError(str(error)) from error


def _print_plan(planned: BalancePlan) -> None:
    from headrace_cli.output import print_table

    rows = [
        {
            "PARTITION": f"{move.topic}-{move.partition}",
            "CHANGE": "replicas",
            "FROM": ",".join(map(str, move.from_)),
            "TO": ",".join(map(str, move.to)),
            "MB": f"{move.bytes / BYTES_PER_MEGABYTE:.1f}",
        }
        for move in planned.moves
    ]
    rows += [
        {
            "PARTITION": f"{move.topic}-{move.partition}",
            "CHANGE": "leader",
            "FROM": str(move.from_),
            "TO": str(move.to),
            "MB": "0.0",
        }
        for move in planned.leader_moves
    ]
    print_table(rows)
    for reason in planned.reasons:
        typer.echo(f"note: {reason}", err=True)
    if planned.is_empty:
        typer.echo("nothing to do", err=True)
        return
    if planned.unmeasured_partitions:
        typer.echo(
            f"plan {planned.hash}: sizes of {planned.unmeasured_partitions} partitions are not "
            "known, so only numbers of replicas count",
            err=True,
        )
    else:
        megabytes = planned.bytes_total / BYTES_PER_MEGABYTE
        seconds = planned.estimated_seconds
        typer.echo(f"plan {planned.hash}: {megabytes:.1f} MB to copy, {seconds:.0f} s", err=True)


def _execute_or_tell(
    target: Target, planned: BalancePlan, *, execute: bool, approved: str | None
) -> None:
    from headrace_cli.clients import admin_client
    from headrace_operator.balance import BalanceError, elect, reassign

    if approved is not None and approved != planned.hash:
        raise CommandError(f"the plan is {planned.hash} now, not {approved}: look at it again")
    if planned.is_empty:
        return
    if not execute:
        typer.echo("dry run: nothing was changed; add --execute to do it", err=True)
        return
    with admin_client(target.bootstrap_servers) as admin:
        try:
            reassign(admin, planned.assignments)
            _wait_moved(admin)
            elect(admin, list(planned.assignments))
        except BalanceError as error:
            raise CommandError(str(error)) from error
    typer.echo("done", err=True)


def _wait_moved(admin: Any) -> None:
    left = len(admin.list_partition_reassignments())
    if left:
        typer.echo(f"{left} partitions move; Ctrl-C leaves them to the brokers", err=True)
    while admin.list_partition_reassignments():
        time.sleep(POLL_SECONDS)
