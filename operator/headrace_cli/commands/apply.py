"""`headrace apply FILE`: change a cluster by manifests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace_cli.errors import CommandError
from headrace_cli.kubernetes.choice import chosen
from headrace_cli.manifests import load_valid_manifests, named_path
from headrace_cli.options import ClusterName, DataDirectory, ManifestArgument, ManifestOption

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
    path = named_path(file, filename)
    choice = chosen()
    if choice is not None:
        from headrace_cli.kubernetes.apply import apply_in_kubernetes

        apply_in_kubernetes(path, choice, force=force_conflicts)
        return
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
        _report(resources, before)
        typer.echo(f"cluster {layout.root.name} is not running: this holds from its next `up`")
        return
    outcome = change_running(layout, state, lambda store: store.put(resources))
    _report(resources, before)
    for action in outcome.performed:
        typer.echo(f"  {action.describe()}")
    for action in outcome.rest.actions:
        typer.echo(f"  {action.describe()} (by the running `headrace up`)")
    for wait in outcome.rest.waiting:
        typer.echo(f"  … {wait.resource[0]} {wait.resource[2]}: {wait.message}")
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


def _report(resources: Sequence[Resource], before: Sequence[dict[str, object]]) -> None:
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
        typer.echo(f"{kind.lower()}/{name} {verdict}")
