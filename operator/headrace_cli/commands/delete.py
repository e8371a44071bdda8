"""`headrace delete FILE` and `headrace delete KIND NAME…`: what deletionPolicy says, no more."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_cli.errors import BadInputError, CommandError
from headrace_cli.kubernetes.choice import refuse_kubernetes
from headrace_cli.options import BootstrapServers, ClusterName, DataDirectory
from headrace_cli.report import Report, ReportFormat, ReportOutput, reporting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_cli.clients import Target
    from headrace_operator.local.desired import DesiredStore
    from headrace_operator.local.layout import ClusterLayout
    from headrace_operator.local.state import ClusterState
    from headrace_operator.plan import Key
    from headrace_operator.resources import Resource

__all__ = ["delete"]

#: As in kubectl: singular, plural, in any case, and the output of `get -o name`.
KINDS = {
    "topic": "Topic",
    "group": "ConsumerGroup",
    "consumergroup": "ConsumerGroup",
    "cluster": "Cluster",
    "sparkapplication": "SparkApplication",
    "job": "SparkApplication",
    "deployment": "Deployment",
}
# `up` reads the manifests every second; a Spark job finishes its batch first.
WAIT_SECONDS = 60.0
POLL_SECONDS = 0.2


def delete(  # noqa: PLR0913 - each is an option of the command line
    what: Annotated[
        str, typer.Argument(help="Manifest or folder; or a kind: topic, group, job, deployment.")
    ],
    names: Annotated[list[str] | None, typer.Argument(help="Names, after a kind.")] = None,
    *,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask about what no manifest describes.")
    ] = False,
    output: ReportOutput = ReportFormat.TABLE,
    bootstrap_server: BootstrapServers = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
) -> None:
    """Delete what manifests describe, or resources by name, as their deletionPolicy says.

    Retain (the default) takes the manifest away and leaves topic or group in the brokers, Delete
    removes it there too, Protect refuses. A topic or group that no manifest describes is removed
    from the brokers; --yes, or the answer to a question, says so. The next `up` of manifests that
    still have a resource creates it again.
    """
    with reporting(output) as report:
        refuse_kubernetes("kubectl delete, with the same deletionPolicy,")
        _delete(report, what, names or [], (data_dir, cluster, bootstrap_server), yes=yes)


def _delete(
    report: Report,
    what: str,
    names: Sequence[str],
    place: tuple[Path, str | None, str | None],
    *,
    yes: bool,
) -> None:
    from headrace_cli.clients import find_cluster, find_layout
    from headrace_operator.local.desired import DesiredStore
    from headrace_operator.local.state import load_state

    data_dir, cluster, bootstrap_server = place
    wanted = _by_name(what, names)
    if bootstrap_server:
        if wanted is None:
            raise BadInputError("with --bootstrap-server give KIND NAME: manifests need a cluster")
        target = find_cluster(data_dir, None, bootstrap_server)
        _delete_undescribed(target, wanted, report, yes=yes)
        return
    layout = find_layout(data_dir, cluster)
    resources, undescribed = _select(DesiredStore(layout), what, wanted, report)
    _refuse(resources)
    state = load_state(layout.state_file)
    if resources:
        if state is not None and state.is_running:
            _delete_running(layout, state, resources, report)
        else:
            _delete_stopped(layout, resources, report)
    if undescribed:
        target = find_cluster(data_dir, cluster, None)
        _delete_undescribed(target, undescribed, report, yes=yes)


def _by_name(what: str, names: Sequence[str]) -> list[tuple[str, str]] | None:
    """Return kinds and names; None when `what` is a path."""
    pairs = [(what, name) for name in names]
    if not names and "/" in what and not Path(what).exists():
        pairs = [tuple(what.split("/", 1))]  # type: ignore[list-item] # split once, so two parts
    if not pairs:
        if _kind(what) is not None and not Path(what).exists():
            raise BadInputError(f"delete {what}: which one? NAME is missing")
        return None
    found = []
    for text, name in pairs:
        kind = _kind(text)
        if kind is None:
            known = ", ".join(KINDS)
            raise BadInputError(f"{text}: no such file or folder, and no kind ({known})")
        found.append((kind, name))
    return found


def _kind(text: str) -> str | None:
    lowered = text.lower()
    return KINDS.get(lowered) or KINDS.get(lowered.removesuffix("s"))


def _select(
    store: DesiredStore, what: str, wanted: list[tuple[str, str]] | None, report: Report
) -> tuple[list[Resource], list[tuple[str, str]]]:
    """Find the stored resources to delete, and the kinds and names without a stored one."""
    stored = {resource.key: resource for resource in store.load()}
    if wanted is None:
        from headrace_cli.manifests import load_valid_manifests

        given = load_valid_manifests(Path(what), old=store.documents())
        for resource in given:
            if resource.key not in stored:
                typer.echo(f"{_title(resource.key)} is not there", err=True)
                report.add(None, **_row(resource.key), result="absent")
        return [stored[each.key] for each in given if each.key in stored], []
    found, undescribed = [], []
    for kind, name in wanted:
        mine = [
            resource
            for resource in stored.values()
            if resource.kind == kind and name in _names(resource)
        ]
        found += mine
        if not mine and kind not in {"Topic", "ConsumerGroup"}:
            raise CommandError(f"{kind} {name} does not exist")
        if not mine:
            undescribed.append((kind, name))
    return found, undescribed


def _names(resource: Resource) -> set[str]:
    """Its own name, and its name on the brokers."""
    from headrace_operator.resources import ConsumerGroup, Topic

    names = {resource.metadata.name}
    if isinstance(resource, Topic):
        names.add(resource.topic_name)
    if isinstance(resource, ConsumerGroup):
        names.add(resource.group_id)
    return names


def _refuse(resources: Sequence[Resource]) -> None:
    """Refuse everything if one of them is protected: a partial deletion would not help."""
    from headrace_cli.change import protections

    for resource in resources:
        if resource.kind == "Cluster":
            raise CommandError(
                f"{_title(resource.key)}: `headrace down` stops a cluster, and"
                " `headrace down --delete-data` removes it"
            )
    protected = protections(resources)
    if protected:
        raise CommandError("\n".join([*protected, "nothing was deleted"]))


def _delete_stopped(layout: ClusterLayout, resources: Sequence[Resource], report: Report) -> None:
    from headrace_operator.local.desired import DesiredStore

    store = DesiredStore(layout)
    for resource in resources:
        if _is_removed_from_brokers(resource):
            store.mark_deleted([resource.key])
            report.add(
                f"{_title(resource.key)} is deleted at the next `up`, from the brokers too",
                **_row(resource.key),
                result="pending",
            )
        else:
            store.remove([resource.key])
            _say_deleted(resource, report)


def _delete_running(
    layout: ClusterLayout, state: ClusterState, resources: Sequence[Resource], report: Report
) -> None:
    from headrace_cli.change import change_running
    from headrace_operator.local.desired import DesiredStore

    store = DesiredStore(layout)
    keys = {resource.key for resource in resources}
    outcome = change_running(layout, state, lambda store: store.mark_deleted(keys))
    waiting = {wait.resource: wait.message for wait in outcome.rest.waiting}
    deadline = time.monotonic() + WAIT_SECONDS
    # The running `up` stops processes.
    while (left := keys & {each.key for each in store.load()}) and time.monotonic() < deadline:
        if left <= waiting.keys():
            break
        time.sleep(POLL_SECONDS)
    for resource in resources:
        if resource.key not in left:
            _say_deleted(resource, report)
        else:
            report.add(None, **_row(resource.key), result="pending")
    problems = list(outcome.failures)
    problems += [
        f"{_title(key)} is not gone yet: {waiting.get(key, 'see the terminal of `up`')}"
        for key in sorted(left)
    ]
    if problems:
        raise CommandError("\n".join(problems))


def _delete_undescribed(
    target: Target, wanted: Sequence[tuple[str, str]], report: Report, *, yes: bool
) -> None:
    """Remove topics and groups without a manifest from the brokers."""
    from headrace_cli.clients import admin_client
    from headrace_operator.apply import apply_actions
    from headrace_operator.plan import Action, DeleteGroup, DeleteTopic

    with admin_client(target) as admin:
        _check_existing(admin, wanted)
        if not yes:
            _confirm(wanted)
        actions: list[Action] = [
            DeleteTopic(resource=(kind, "", name), topic=name)
            if kind == "Topic"
            else DeleteGroup(resource=(kind, "", name), group=name)
            for kind, name in wanted
        ]
        failures = {failure.action: failure for failure in apply_actions(admin, actions)}
    for action in actions:
        row = _row(action.resource)
        if action not in failures:
            report.add(f"{_title(action.resource)} deleted", **row, result="deleted")
        else:
            message = failures[action].describe()
            report.add(None, **row, result="refused", message=message)
    if failures:
        raise CommandError("\n".join(failure.describe() for failure in failures.values()))


def _check_existing(admin: Any, wanted: Sequence[tuple[str, str]]) -> None:
    topics = {topic["name"] for topic in admin.describe_topics()}
    groups = {group["group_id"] for group in admin.list_groups()}
    for kind, name in wanted:
        if name not in (topics if kind == "Topic" else groups):
            raise CommandError(f"{kind} {name} does not exist")


def _confirm(wanted: Sequence[tuple[str, str]]) -> None:
    titles = ", ".join(f"{kind} {name}" for kind, name in wanted)
    text = f"{titles}: no manifest here describes it; records and offsets would be gone for good"
    if not sys.stdin.isatty():
        raise CommandError(f"{text}: add --yes where nobody answers")
    typer.confirm(f"{text}. Delete?", abort=True, err=True)


def _is_removed_from_brokers(resource: Resource) -> bool:
    from headrace_operator.resources import ConsumerGroup, Topic

    return isinstance(resource, Topic | ConsumerGroup) and resource.spec.deletion_policy == "Delete"


def _say_deleted(resource: Resource, report: Report) -> None:
    from headrace_operator.resources import ConsumerGroup, Topic

    note = ""
    if not _is_removed_from_brokers(resource):
        if isinstance(resource, Topic):
            note = "; the topic and its records stay in the brokers (deletionPolicy: Retain)"
        elif isinstance(resource, ConsumerGroup):
            note = "; its committed offsets stay in the brokers (deletionPolicy: Retain)"
    title = f"{_title(resource.key)} deleted{note}"
    row = {"result": "deleted", "message": note.removeprefix("; ")}
    report.add(title, **_row(resource.key), **row)


def _row(key: Key) -> dict[str, str]:
    return {"kind": key[0], "name": key[2]}


def _title(key: Key) -> str:
    return f"{key[0].lower()}/{key[2]}"
