"""`headrace groups reset`: move a consumer group to another position."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, assert_never

import typer

from headrace_cli.errors import BadInputError, CommandError
from headrace_cli.options import BootstrapServers, ClusterName, DataDirectory, GroupName
from headrace_cli.positions import Position, PositionKind, parse_position
from headrace_cli.report import Report, ReportFormat, ReportOutput, reporting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_cli.clients import Target
    from headrace_operator.plan import ObservedGroup, TopicPartition
    from headrace_operator.resources import ConsumerGroup

__all__ = ["commit_offsets", "groups_app", "print_changes", "refuse_while_read"]

# A Spark job finishes its batch before it stops.
WAIT_SECONDS = 90.0
POLL_SECONDS = 0.2
PREVIOUS = "previous"


@dataclass(frozen=True, kw_only=True)
class _Move:
    """A group's new position: as in a manifest, and as offsets."""

    topics: tuple[str, ...]
    to: dict[str, object]
    wanted: Mapping[TopicPartition, int]
    current: Mapping[TopicPartition, int]
    is_share: bool


groups_app = typer.Typer(help="Work on consumer groups.", no_args_is_help=True)


@groups_app.callback()
def groups() -> None:
    """Work on consumer groups."""


@groups_app.command(name="reset")
def reset(  # noqa: PLR0913 - each is an option of the command line
    group: GroupName,
    *,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", help="Topic whose offsets move; may be repeated."),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All in which the group has offsets.")
    ] = False,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="earliest, latest, 2026-01-31T10:00:00Z, 15m (ago), offset:42, shift:-10, or "
            "previous (undoes the last reset).",
        ),
    ],
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it; without this, only show what would change.")
    ] = False,
    output: ReportOutput = ReportFormat.TABLE,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Show, and with --execute make, a move of a group's offsets (a share group's start).

    The group must be empty. Where a ConsumerGroup names the Deployment or SparkApplication that
    reads in it, the running `up` stops that, moves the group, and starts it again.
    """
    with reporting(output, is_dry_run=not execute) as report:
        report.set(group=group)
        if bool(topic) == all_topics:
            raise BadInputError("say either --topic or --all-topics")
        place = (data_dir, cluster, bootstrap_server)
        _reset(report, group, topic, to, place, execute=execute)


def _reset(
    report: Report,
    group: str,
    topic: list[str] | None,
    to: str,
    place: tuple[Path, str | None, str | None],
    *,
    execute: bool,
) -> None:
    """Move a group; `topic` None: all that it has offsets in. Raises CommandError."""
    from headrace_cli.clients import admin_client, find_cluster
    from headrace_cli.objects import load_groups

    is_undo = to == PREVIOUS
    position = (
        Position(kind=PositionKind.OFFSET) if is_undo else parse_position(to, now=datetime.now(UTC))
    )
    target = find_cluster(*place)
    with admin_client(target) as admin:
        observed = load_groups(admin, [group])[group]
        described = _find_described(target, group)
        if described is None:
            refuse_while_read(group, observed)
        topics = tuple(topic or _topics_of(observed, group))
        wanted: dict[TopicPartition, int] = {}
        for name in topics:
            wanted |= (
                _offsets_before_reset(described, group, name)
                if is_undo
                else target_offsets(admin, observed, name, position)
            )
        print_changes(observed, wanted, report)
    if not execute:
        typer.echo("dry run: nothing was changed; add --execute to do it", err=True)
        return
    move = _Move(
        topics=topics,
        to=_manifest_position(position, wanted),
        wanted=wanted,
        current={key: offset for key, offset in observed.offsets.items() if key in wanted},
        is_share=observed.is_share,
    )
    _carry_out(target, group, described, move)


def _carry_out(target: Target, group: str, described: ConsumerGroup | None, move: _Move) -> None:
    """Move a group, and say how to undo it."""
    request_id = f"cli-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:4]}"
    if described is not None:
        _reset_by_manifest(target, described, request_id, move)
    else:
        _commit(target, group, request_id, move)
    undo = "--to previous" if described is not None else "the column CURRENT above"
    typer.echo(f"group {group} moved; {undo} undoes it", err=True)


def _topics_of(observed: ObservedGroup, group: str) -> list[str]:
    """Return the topics in which a group has offsets. Raises CommandError."""
    topics = sorted({name for name, _ in observed.offsets})
    if not topics:
        raise CommandError(f"group {group} has no offsets: name topics with --topic")
    return topics


def refuse_while_read(name: str, group: ObservedGroup) -> None:
    """Raise CommandError if a group has members."""
    from headrace_operator.plan.groups import EMPTY_STATES

    if group.state not in EMPTY_STATES:
        raise CommandError(
            f"group {name} is {group.state} with {len(group.members)} members: "
            "stop them first; Kafka moves only groups that nobody reads in"
        )


def target_offsets(
    admin: Any, group: ObservedGroup, topic: str, position: Position
) -> dict[TopicPartition, int]:
    """Find the new offset of every partition, within the partition's bounds."""
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
            # A partition without a committed offset cannot be shifted.
            current = {key: group.offsets[key] for key in keys if key in group.offsets}
            wanted = {key: offset + position.value for key, offset in current.items()}
        case PositionKind.TIMESTAMP:
            found_at = list_offsets(admin, dict.fromkeys(keys, position.value))
            # Past the last record it is the end, as in Kafka's own tool.
            wanted = {key: found_at.get(key, ends[key]) for key in keys}
        case _:
            assert_never(position.kind)
    return {
        key: min(max(offset, starts.get(key, 0)), ends.get(key, offset))
        for key, offset in sorted(wanted.items())
    }


def _offsets_before_reset(
    described: ConsumerGroup | None, group: str, topic: str
) -> dict[TopicPartition, int]:
    last = described.status.last_reset if described is not None else None
    offsets = {
        (entry.topic, entry.partition): entry.offset
        for entry in (last.previous_offsets if last is not None else ())
        if entry.topic == topic
    }
    if not offsets:
        raise CommandError(f"no reset of group {group} on topic {topic} is remembered to be undone")
    return offsets


def print_changes(
    group: ObservedGroup, wanted: Mapping[TopicPartition, int], report: Report
) -> None:
    """Print what a move would change."""
    from headrace_cli.output import print_table

    rows = []
    for (topic, index), offset in wanted.items():
        current = group.offsets.get((topic, index))
        report.add(None, topic=topic, partition=index, current=current, new=offset)
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
    if not report.is_document:
        print_table(rows)


def _commit(target: Target, group: str, request_id: str, plan: _Move) -> None:
    """Move an empty group; a Spark job that uses it follows when it starts."""
    commit_offsets(
        target, group, plan.wanted, plan.current, request_id=request_id, is_share=plan.is_share
    )


def commit_offsets(
    target: Target,
    group: str,
    wanted: Mapping[TopicPartition, int],
    current: Mapping[TopicPartition, int],
    *,
    request_id: str = "cli",
    is_share: bool = False,
) -> None:
    """Write the offsets of a group without readers. Raises CommandError."""
    from headrace_cli.clients import admin_client
    from headrace_operator.apply import apply_actions
    from headrace_operator.plan import ResetOffsets

    action = ResetOffsets(
        resource=("ConsumerGroup", "", group),
        group=group,
        request_id=request_id,
        offsets=wanted,
        previous=current,
        is_share=is_share,
    )
    with admin_client(target) as admin:
        failures = apply_actions(admin, [action])
    if failures:
        raise CommandError("\n".join(failure.describe() for failure in failures))


def _find_described(target: Target, group: str) -> ConsumerGroup | None:
    """Return the ConsumerGroup that describes a group and names its workload."""
    from headrace_operator.local.desired import DesiredStore
    from headrace_operator.resources import ConsumerGroup

    if target.layout is None:
        return None
    for resource in DesiredStore(target.layout).load():
        if (
            isinstance(resource, ConsumerGroup)
            and resource.group_id == group
            and resource.spec.target_ref is not None
        ):
            return resource
    return None


def _reset_by_manifest(
    target: Target, resource: ConsumerGroup, request_id: str, plan: _Move
) -> None:
    """Write the reset into the ConsumerGroup: `up` stops its workload, moves, and starts it."""
    from headrace_cli.change import change_running
    from headrace_operator.local.desired import DesiredStore
    from headrace_operator.resources import parse_resource

    if target.layout is None or target.state is None or resource.spec.target_ref is None:
        raise AssertionError("only a local cluster's ConsumerGroup with a targetRef comes here")
    workload = f"{resource.spec.target_ref.kind} {resource.spec.target_ref.name}"
    typer.echo(f"{workload} is stopped, moved and started again by the running `up` …", err=True)
    documents = DesiredStore(target.layout).documents()
    document = next(each for each in documents if parse_resource(each).key == resource.key)
    document["spec"]["reset"] = {
        "requestId": request_id,
        "topics": list(plan.topics),
        "to": plan.to,
        "whenActive": "ScaleDown",
    }
    changed = parse_resource(document)
    change_running(target.layout, target.state, lambda store: store.put([changed]))
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        found = _find_described(target, resource.group_id)
        last = found.status.last_reset if found else None
        if last is not None and last.request_id == request_id:
            return
        time.sleep(POLL_SECONDS)
    raise CommandError(
        f"{workload} has not stopped in {WAIT_SECONDS:.0f} s; the reset {request_id} is still to"
        " come, see the terminal of `up`"
    )


def _manifest_position(
    position: Position, wanted: Mapping[TopicPartition, int]
) -> dict[str, object]:
    """Return a position in the format of `spec.reset.to`."""
    match position.kind:
        case PositionKind.EARLIEST | PositionKind.LATEST:
            return {"position": position.kind.value.capitalize()}
        case PositionKind.SHIFT:
            return {"shiftBy": position.value}
        case PositionKind.TIMESTAMP:
            moment = datetime.fromtimestamp(position.value / 1000, UTC)
            return {"timestamp": moment.isoformat(timespec="milliseconds")}
        case PositionKind.OFFSET:
            return {
                "offsets": [
                    {"topic": topic, "partition": index, "offset": offset}
                    for (topic, index), offset in wanted.items()
                ]
            }
        case _:
            assert_never(position.kind)
