"""`headrace groups export|import|delete|delete-offsets`: committed offsets as data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli.errors import BadInputError, CommandError
from headrace_cli.options import (
    BootstrapServers,
    ClusterName,
    DataDirectory,
    GroupName,
    Output,
    OutputFormat,
)
from headrace_cli.report import ReportFormat, ReportOutput, reporting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_operator.plan import ObservedGroup, TopicPartition

__all__ = ["add_offset_commands", "parse_offsets"]

Execute = Annotated[
    bool, typer.Option("--execute", help="Do it; without this, only show what would change.")
]
_DRY_RUN = "dry run: nothing was changed; add --execute to do it"


def add_offset_commands(groups_app: typer.Typer) -> None:
    """Add them to `headrace groups`."""
    for function, name in (
        (export, "export"),
        (import_, "import"),
        (delete, "delete"),
        (delete_offsets, "delete-offsets"),
    ):
        groups_app.command(name=name)(function)


def export(
    group: GroupName,
    *,
    output: Output = OutputFormat.YAML,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Print a group's committed offsets; `groups import` takes them back."""
    from headrace_cli.clients import admin_client, find_cluster
    from headrace_cli.output import print_document, print_table

    target = find_cluster(data_dir, cluster, bootstrap_server)
    with admin_client(target) as admin:
        found = _existing(admin, group)
    rows = [
        {"topic": topic, "partition": index, "offset": offset}
        for (topic, index), offset in sorted(found.offsets.items())
    ]
    if output in {OutputFormat.JSON, OutputFormat.YAML}:
        print_document({"group": group, "offsets": rows}, output)
    else:
        print_table([{key.upper(): str(text) for key, text in row.items()} for row in rows])


def import_(  # noqa: PLR0913 - each is an option of the command line
    group: GroupName,
    file: Annotated[Path, typer.Argument(help="What `groups export` printed; - is stdin.")],
    *,
    execute: Execute = False,
    output: ReportOutput = ReportFormat.TABLE,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Move a group, which must be empty, to exported offsets. It need not be there yet."""
    from headrace_cli.clients import admin_client, find_cluster
    from headrace_cli.commands.groups import commit_offsets, print_changes, refuse_while_read
    from headrace_cli.objects import load_groups

    with reporting(output, is_dry_run=not execute) as report:
        report.set(group=group)
        wanted = parse_offsets(_read(file))
        target = find_cluster(data_dir, cluster, bootstrap_server)
        with admin_client(target) as admin:
            found = load_groups(admin, [group])[group]
            refuse_while_read(group, found)
            if found.is_share:
                raise CommandError(f"{group} is a share group: it commits no offsets")
        print_changes(found, wanted, report)
        if not execute:
            typer.echo(_DRY_RUN, err=True)
            return
        current = {key: offset for key, offset in found.offsets.items() if key in wanted}
        commit_offsets(target, group, wanted, current)
        typer.echo(f"group {group} moved", err=True)


def delete(
    groups: Annotated[list[str], typer.Argument(help="Groups that nobody reads in.")],
    *,
    execute: Execute = False,
    output: ReportOutput = ReportFormat.TABLE,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Delete groups with their committed offsets."""
    from headrace_cli.clients import admin_client, find_cluster
    from headrace_cli.commands.groups import refuse_while_read

    with reporting(output, is_dry_run=not execute) as report:
        target = find_cluster(data_dir, cluster, bootstrap_server)
        with admin_client(target) as admin:
            for name in groups:
                refuse_while_read(name, _existing(admin, name))
            if not execute:
                for name in groups:
                    report.add(f"group/{name}", group=name, result="planned")
                typer.echo(_DRY_RUN, err=True)
                return
            failed = _failures(admin.delete_groups(groups))
        for name in groups:
            if name not in failed:
                report.add(f"group/{name} deleted", group=name, result="deleted")
            else:
                report.add(None, group=name, result="refused", message=failed[name])
        if failed:
            raise CommandError("\n".join(f"group {name}: {why}" for name, why in failed.items()))


def delete_offsets(  # noqa: PLR0913 - each is an option of the command line
    group: GroupName,
    *,
    topic: Annotated[list[str], typer.Option("--topic", "-t", help="May be repeated.")],
    execute: Execute = False,
    output: ReportOutput = ReportFormat.TABLE,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Forget a group's offsets in topics that it does not read any more."""
    from kafka import TopicPartition

    from headrace_cli.clients import admin_client, find_cluster

    with reporting(output, is_dry_run=not execute) as report:
        report.set(group=group)
        target = find_cluster(data_dir, cluster, bootstrap_server)
        with admin_client(target) as admin:
            found = _existing(admin, group)
            keys = sorted(key for key in found.offsets if key[0] in topic)
            if not keys:
                raise CommandError(f"group {group} has no offsets in {', '.join(topic)}")
            for name, index in keys:
                report.remark(f"{name}-{index}: {found.offsets[name, index]}")
            failed = {}
            if execute:
                partitions = [TopicPartition(*key) for key in keys]
                failed = _failures(admin.delete_group_offsets(group, partitions))
        for name, index in keys:
            row = {"topic": name, "partition": index, "offset": found.offsets[name, index]}
            why = failed.get(f"{name}-{index}")
            result = "planned" if not execute else "refused" if why else "deleted"
            report.add(None, **row, result=result, **({"message": why} if why else {}))
        if not execute:
            typer.echo(_DRY_RUN, err=True)
            return
        if failed:
            raise CommandError("\n".join(f"{key}: {why}" for key, why in failed.items()))
        typer.echo(f"group {group}: offsets of {len(keys)} partitions deleted", err=True)


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    """Read what `groups export` printed, JSON or YAML. Raises BadInputError. Pure."""
    import yaml

    try:
        rows = yaml.safe_load(text)["offsets"]
        found = {(str(row["topic"]), int(row["partition"])): int(row["offset"]) for row in rows}
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise BadInputError(f"not what `groups export` prints: {error!r}") from error
    if not found or min(found.values()) < 0:
        raise BadInputError("not what `groups export` prints: offsets are numbers from 0 on")
    return found


def _read(file: Path) -> str:
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise BadInputError(f"{file} cannot be read: {error.strerror}") from error
    return data.decode(errors="replace")


def _existing(admin: Any, name: str) -> ObservedGroup:
    from headrace_cli.objects import load_groups

    found = load_groups(admin, [name]).get(name)
    if found is None or (found.state in {"", "Dead"} and not found.offsets):
        raise CommandError(f"group {name} does not exist")
    return found


def _failures(answer: Mapping[Any, Any]) -> dict[str, str]:
    """Return what was refused: kafka-python answers with an error, or its class, for each."""
    failed = {}
    for key, error in answer.items():
        kind: Any = error if isinstance(error, type) else type(error)
        if getattr(kind, "errno", 0):
            name = f"{key.topic}-{key.partition}" if hasattr(key, "topic") else str(key)
            failed[name] = str(kind.__name__)
    return failed
