"""`headrace apply FILE`: change a cluster by manifests."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace_cli.errors import CommandError
from headrace_cli.kubernetes.choice import chosen
from headrace_cli.manifests import load_valid_manifests, named_path
from headrace_cli.options import ClusterName, DataDirectory, ManifestArgument, ManifestOption
from headrace_cli.report import Report, ReportFormat, ReportOutput, reporting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_operator.resources import Resource

__all__ = ["apply"]


def apply(
    file: ManifestArgument = None,
    *,
    filename: ManifestOption = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
    output: ReportOutput = ReportFormat.TABLE,
    force_conflicts: Annotated[
        bool,
        typer.Option(
            "--force-conflicts", help="In Kubernetes: take over fields that others have applied."
        ),
    ] = False,
) -> None:
    """Make a cluster what these manifests say: now if it runs, else at its next `up`.

    In Kubernetes (--context, --namespace) it is `kubectl apply --server-side`, of any manifests.
    """
    with reporting(output) as report:
        path = named_path(file, filename)
        choice = chosen()
        if choice is None:
            _apply_here(path, data_dir, cluster, report)
            return
        from headrace_cli.kubernetes.apply import Result, apply_in_kubernetes

        def told(each: Result) -> None:
            line = f"{each.kind.lower()}/{each.name} {each.result}"
            report.add(None if each.message else line, **asdict(each))

        apply_in_kubernetes(path, choice, told, force=force_conflicts)


def _apply_here(path: Path, data_dir: Path, cluster: str | None, report: Report) -> None:
    """Apply manifests to a cluster of this machine. Raises CommandError with what went wrong."""
    from headrace_cli.change import change_running
    from headrace_cli.clients import find_layout
    from headrace_operator.local.desired import DesiredStore
    from headrace_operator.local.state import load_state

    layout = find_layout(data_dir, cluster)
    store = DesiredStore(layout)
    before = store.documents()
    resources = load_valid_manifests(path, old=before)
    state = load_state(layout.state_file)
    if state is None or not state.is_running:
        store.put(resources)
        _report(resources, before, report)
        report.remark(f"cluster {layout.root.name} is not running: this holds from its next `up`")
        return
    outcome = change_running(layout, state, lambda store: store.put(resources))
    _report(resources, before, report)
    said = [(action.describe(), "done", action.describe()) for action in outcome.performed]
    said += [
        (f"{action.describe()} (by the running `headrace up`)", "pending", action.describe())
        for action in outcome.rest.actions
    ]
    said += [
        (f"… {wait.resource[0]} {wait.resource[2]}: {wait.message}", "waiting", wait.message)
        for wait in outcome.rest.waiting
    ]
    for line, _, _ in said:
        report.remark(f"  {line}")
    report.set(actions=[{"state": state, "message": message} for _, state, message in said])
    problems = [
        *outcome.failures,
        *(
            f"{kind} {name}: {problem.reason}: {problem.message}"
            for problem in outcome.rest.problems
            for kind, _, name in [problem.resource]
        ),
    ]
    if problems:
        raise CommandError("\n".join(problems))


def _report(
    resources: Sequence[Resource], before: Sequence[dict[str, object]], report: Report
) -> None:
    from headrace_operator.resources import parse_resource

    known = {parse_resource(document).key: document for document in before}
    for resource in resources:
        if resource.key not in known:
            verdict = "created"
        elif known[resource.key] == resource.document:
            verdict = "unchanged"
        else:
            verdict = "configured"
        kind, _, name = resource.key
        report.add(f"{kind.lower()}/{name} {verdict}", kind=kind, name=name, result=verdict)
