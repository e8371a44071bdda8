"""`headrace cluster plan|rebalance|drain|cordon|uncordon`: where replicas and leaders should be."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli.commands.dirs import directories
from headrace_cli.commands.voters import voters_app
from headrace_cli.errors import BadInputError, CommandError
from headrace_cli.options import (
    BootstrapServers,
    ClusterName,
    DataDirectory,
    Http,
    Output,
    OutputFormat,
)
from headrace_cli.report import Report, ReportFormat, ReportOutput, reporting

if TYPE_CHECKING:
    from headrace_cli.clients import Target
    from headrace_operator.balance import BalancePlan, BalanceProgress

__all__ = ["cluster_app", "parse_rate"]

POLL_SECONDS = 0.5
WATCH_SECONDS = 1.0
POLLS_MAX = 10
BYTES_PER_MEGABYTE = 1_000_000
_RATE = re.compile(r"([0-9]{1,12})\s*(B|KB|MB|GB)?(/s)?", re.IGNORECASE)
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}

Execute = Annotated[
    bool, typer.Option("--execute", help="Do it; without this, only show what would change.")
]
Approved = Annotated[
    str | None,
    typer.Option("--approve", help="Do it if it still is the plan of this hash."),
]
Throttle = Annotated[
    str | None,
    typer.Option(help="Bytes per second that each broker copies at most: 500KB, 10MB, 1GB."),
]
Concurrent = Annotated[
    int | None, typer.Option(min=1, max=1000, help="Partitions copied at the same time.")
]
Wait = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait until it is done; the brokers go on anyway.")
]
Node = Annotated[int, typer.Argument(help="Id of the broker.")]

cluster_app = typer.Typer(help="Balance, drain and cordon brokers.", no_args_is_help=True)
cluster_app.add_typer(voters_app, name="voters")
cluster_app.command(name="dirs")(directories)


@cluster_app.command(name="plan")
def plan(
    *,
    throttle: Throttle = None,
    output: Output = OutputFormat.TABLE,
    http: Http = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Show what `rebalance` would do, its hash, and how long it would take at a throttle."""
    addresses = http or _target(data_dir, cluster, None).http_addresses
    planned = _fetch(addresses, None, throttle)
    if not _is_printed(planned, output):
        _print_plan(planned)


@cluster_app.command(name="rebalance")
def rebalance(  # noqa: PLR0913 - each is an option of the command line
    *,
    execute: Execute = False,
    approved: Approved = None,
    throttle: Throttle = None,
    concurrent: Concurrent = None,
    pause: Annotated[bool, typer.Option("--pause", help="Begin no further move.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on.")] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Take back what moves; what has moved stays.")
    ] = False,
    status: Annotated[bool, typer.Option("--status", help="Show the plan under way.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="With --status: go on until it is over.")
    ] = False,
    output: Output = OutputFormat.TABLE,
    wait: Wait = True,
    http: Http = None,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Spread replicas and leaders evenly over racks and brokers."""
    if pause + resume + cancel + status + (execute or approved is not None) > 1:
        raise BadInputError(
            "choose one of --execute, --approve, --pause, --resume, --cancel, --status"
        )
    target = _target(data_dir, cluster, bootstrap_server)
    addresses = http or target.http_addresses
    if status:
        _show_progress(addresses, output, watch=watch)
    elif pause or resume or cancel:
        state = "paused" if pause else "running" if resume else "cancelled"
        _change_state(target, state, throttle, concurrent)
        typer.echo(f"the plan is {state}", err=True)
    else:
        planned = _fetch(addresses, None, throttle)
        if not _is_printed(planned, output):
            _print_plan(planned)
        if _is_approved(planned, execute=execute, approved=approved):
            _carry_out(target, addresses, planned, (throttle, concurrent), wait=wait)


@cluster_app.command(name="drain")
def drain(  # noqa: PLR0913 - each is an option of the command line
    broker: Node,
    *,
    execute: Execute = False,
    approved: Approved = None,
    throttle: Throttle = None,
    concurrent: Concurrent = None,
    output: ReportOutput = ReportFormat.TABLE,
    wait: Wait = True,
    http: Http = None,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Cordon a broker and move every replica away. It goes on running, and stays cordoned."""
    is_dry_run = not execute and approved is None
    with reporting(output, is_dry_run=is_dry_run) as report:
        target = _target(data_dir, cluster, bootstrap_server)
        addresses = http or target.http_addresses
        planned = _fetch(addresses, broker, throttle)
        _print_plan(planned, report)
        if planned.reasons:
            raise CommandError(f"broker {broker} cannot be drained: " + "; ".join(planned.reasons))
        result = "unchanged" if planned.is_empty else "planned"
        try:
            if _is_approved(planned, execute=execute, approved=approved):
                _set_cordon(target, broker, cordoned=True)
                result = "cordoned"
                _carry_out(target, addresses, planned, (throttle, concurrent), wait=wait)
                result = "drained" if wait else "draining"
        finally:
            report.add(None, broker=broker, result=result)


@cluster_app.command(name="cordon")
def cordon(
    broker: Node,
    *,
    output: ReportOutput = ReportFormat.TABLE,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Place no new replicas on a broker. Those that are there stay."""
    with reporting(output) as report:
        _set_cordon(_target(data_dir, cluster, bootstrap_server), broker, cordoned=True)
        report.add(None, broker=broker, result="cordoned")
    typer.echo(f"broker {broker} is cordoned", err=True)


@cluster_app.command(name="uncordon")
def uncordon(
    broker: Node,
    *,
    output: ReportOutput = ReportFormat.TABLE,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Let a broker get new replicas again."""
    with reporting(output) as report:
        _set_cordon(_target(data_dir, cluster, bootstrap_server), broker, cordoned=False)
        report.add(None, broker=broker, result="uncordoned")
    typer.echo(f"broker {broker} is not cordoned", err=True)


def parse_rate(text: str | None) -> int | None:
    """Return bytes per second of `10MB`, `10MB/s` or a number. Raises BadInputError."""
    if text is None:
        return None
    found = _RATE.fullmatch(text.strip())
    rate = int(found[1]) * _UNITS[(found[2] or "").upper()] if found else 0
    if rate < 1:
        raise BadInputError(f"--throttle {text}: say 500KB, 10MB or a number of bytes per second")
    return rate


def _target(data_directory: Path, cluster: str | None, bootstrap_servers: str | None) -> Target:
    from headrace_cli.clients import find_cluster

    return find_cluster(data_directory, cluster, bootstrap_servers)


def _fetch(addresses: list[str], drained: int | None, throttle: str | None) -> BalancePlan:
    from headrace_operator.balance import BalanceError, fetch_plan

    try:
        return fetch_plan(addresses, drained, parse_rate(throttle))
    except BalanceError as error:
        raise CommandError(str(error)) from error


def _progress(addresses: list[str]) -> BalanceProgress:
    from headrace_operator.balance import BalanceError, fetch_progress

    try:
        return fetch_progress(addresses)
    except BalanceError as error:
        raise CommandError(str(error)) from error


def _set_cordon(target: Target, broker: int, *, cordoned: bool) -> None:
    from headrace_operator.balance import set_cordons

    _administer(target, lambda admin: set_cordons(admin, [broker], cordoned=cordoned))


def _change_state(target: Target, state: str, throttle: str | None, concurrent: int | None) -> None:
    from headrace_operator.balance import change_state

    rate = parse_rate(throttle)
    _administer(
        target, lambda admin: change_state(admin, state, throttle=rate, concurrent=concurrent)
    )


def _administer(target: Target, do: Any) -> None:
    from headrace_cli.clients import admin_client
    from headrace_operator.balance import BalanceError

    with admin_client(target) as admin:
        try:
            do(admin)
        except BalanceError as error:
            raise CommandError(str(error)) from error


def _is_approved(planned: BalancePlan, *, execute: bool, approved: str | None) -> bool:
    if approved is not None and approved != planned.hash:
        raise CommandError(f"the plan is {planned.hash} now, not {approved}: look at it again")
    if planned.is_empty:
        return False
    if not execute and approved is None:
        typer.echo(
            f"dry run: nothing was changed; add --approve {planned.hash} to do just this, or "
            "--execute to do what the plan is then",
            err=True,
        )
        return False
    return True


def _print_plan(planned: BalancePlan, report: Report | None = None) -> None:
    import msgspec

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
    if report is not None:
        report.set(plan=msgspec.to_builtins(planned))
    if report is None or not report.is_document:
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


def _is_printed(found: BalancePlan | BalanceProgress, output: OutputFormat) -> bool:
    """Print it as a document where that is asked for; whether it was."""
    import msgspec

    from headrace_cli.output import print_document

    if output not in {OutputFormat.JSON, OutputFormat.YAML}:
        return False
    print_document(msgspec.to_builtins(found), output)
    return True


def _show_progress(addresses: list[str], output: OutputFormat, *, watch: bool) -> None:
    """Print how far the plan is; with `watch` whenever that changes, until none is under way."""
    last: BalanceProgress | None = None
    while True:
        progress = _progress(addresses)
        if progress != last and not _is_printed(progress, output):
            _print_progress(progress)
        last = progress
        if not watch or progress.plan is None:
            return
        time.sleep(WATCH_SECONDS)


def _print_progress(progress: BalanceProgress) -> None:
    from headrace_cli.output import print_table

    plan = progress.plan
    if plan is None:
        last = f"; the last one: {progress.last}" if progress.last else ""
        typer.echo(f"no plan is under way{last}")
        return
    print_table(
        [
            {
                "PARTITION": f"{move.topic}-{move.partition}",
                "STATE": move.state,
                "FROM": ",".join(map(str, move.from_)),
                "TO": ",".join(map(str, move.to)),
                "MB": f"{move.bytes / BYTES_PER_MEGABYTE:.1f}",
            }
            for move in plan.moves
            if move.state not in {"done", "skipped"}
        ]
    )
    rate = plan.throttle_bytes_per_second
    throttle = "unthrottled" if rate is None else f"{rate / BYTES_PER_MEGABYTE:g} MB/s"
    typer.echo(
        f"plan {plan.hash} is {plan.state}: {plan.count('done', 'skipped')} of {len(plan.moves)}"
        f" moves over, {plan.count('moving')} moving, {plan.count('blocked')} blocked;"
        f" {plan.bytes_left / BYTES_PER_MEGABYTE:.1f} MB left, {plan.estimated_seconds_left:.0f} s"
        f" ({throttle}, {plan.concurrent_moves} at a time)"
    )


def _carry_out(
    target: Target,
    addresses: list[str],
    planned: BalancePlan,
    limits: tuple[str | None, int | None],
    *,
    wait: bool,
) -> None:
    from headrace_operator.balance import approve

    rate, concurrent = parse_rate(limits[0]), limits[1]
    before = _progress(addresses).last
    _administer(target, lambda admin: approve(admin, planned, throttle=rate, concurrent=concurrent))
    if not wait:
        typer.echo("the controller carries it out; see --status", err=True)
        return
    typer.echo("Ctrl-C leaves it to the controller", err=True)
    # The broker that is asked may learn of the plan, and of its end, a little later.
    was_seen, tries = False, 0
    while True:
        progress = _progress(addresses)
        last, tries = progress.last or "", tries + 1
        was_seen |= progress.plan is not None and progress.plan.hash == planned.hash
        if progress.plan is not None and progress.plan.state == "paused":
            raise CommandError("the plan was paused: go on by `cluster rebalance --resume`")
        is_told = was_seen or last != before or tries >= POLLS_MAX
        if progress.plan is None and last.startswith(planned.hash) and is_told:
            typer.echo(last.removeprefix(planned.hash).strip(), err=True)
            return
        time.sleep(POLL_SECONDS)
