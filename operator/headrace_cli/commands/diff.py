"""`headrace diff FILE`: what `headrace apply FILE` would do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace_cli.errors import BadInputError
from headrace_cli.kubernetes.choice import Choice, chosen, open_connection
from headrace_cli.manifests import load_valid_manifests, named_path
from headrace_cli.options import ClusterName, DataDirectory, ManifestArgument, ManifestOption
from headrace_cli.report import Report, ReportFormat, ReportOutput, reporting

if TYPE_CHECKING:
    from headrace_operator.local.desired import DesiredStore
    from headrace_operator.local.state import ClusterState
    from headrace_operator.plan import Desired, Plan

__all__ = ["diff"]

EXIT_DIFFERENT = 1


def diff(  # noqa: PLR0913 - each is an option of the command line
    file: ManifestArgument = None,
    *,
    filename: ManifestOption = None,
    data_dir: DataDirectory = Path(".headrace"),
    cluster: ClusterName = None,
    output: ReportOutput = ReportFormat.TABLE,
    context: Annotated[
        str | None,
        typer.Option(help="Compare with a Kubernetes cluster: a context of the kubeconfig."),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", "-n", help="In Kubernetes: for manifests that name none themselves."
        ),
    ] = None,
) -> None:
    """Print what applying these manifests would do to the running cluster.

    Exit status as kubectl diff: 0 no difference, 1 differences.
    """
    choice = chosen()
    if context is not None or namespace is not None:
        # Both may be given before the command, and after it.
        choice = Choice(
            context=context or (choice.context if choice else None),
            namespace=namespace or (choice.namespace if choice else None),
            at_end=lambda _: None,
        )
    with reporting(output, is_dry_run=True) as report:
        path = named_path(file, filename)
        if choice is not None:
            _diff_kubernetes(path, choice, report)
        else:
            _diff_here(path, data_dir, cluster, report)


def _diff_here(path: Path, data_dir: Path, cluster: str | None, report: Report) -> None:
    from headrace_cli.clients import find_cluster
    from headrace_operator.local.desired import DesiredStore, desired_of

    target = find_cluster(data_dir, cluster, None)
    if target.layout is None or target.state is None:
        raise AssertionError("a local cluster has a layout and a state")
    store = DesiredStore(target.layout)
    resources = load_valid_manifests(path, old=store.documents())
    changed = {resource.key: resource for resource in resources}
    merged = {resource.key: resource for resource in store.load()} | changed
    desired = desired_of(merged.values(), target.state.cluster)
    planned = asyncio.run(_plan(target.state, store, desired))
    report.remark(planned.describe())
    for state, told in (
        ("planned", [(each.resource, each.describe()) for each in planned.actions]),
        ("proposed", [(each.resource, each.describe()) for each in planned.proposed]),
        ("problem", [(each.resource, each.message) for each in planned.problems]),
        ("waiting", [(each.resource, each.message) for each in planned.waiting]),
    ):
        for (kind, _, name), message in told:
            report.add(None, kind=kind, name=name, result=state, message=message)
    if planned.actions or planned.problems:
        raise typer.Exit(EXIT_DIFFERENT)


def _diff_kubernetes(file: Path, choice: Choice, report: Report) -> None:
    from headrace_cli.kubernetes.diff import Difference, compare, read_objects
    from headrace_operator.kubernetes.api.client import KubernetesClient

    objects = read_objects(file)
    connection, default_namespace = open_connection(choice)

    async def run() -> list[Difference]:
        async with KubernetesClient(connection) as client:
            return await compare(client, objects, default_namespace)

    differences = asyncio.run(run())
    for difference in differences:
        *place, kind, name = difference.name.split("/")
        text = "\n".join(difference.lines())
        created = "configured" if difference.before else "created"
        report.add(
            text,
            kind=kind,
            name=name,
            namespace=place[0] if place else None,
            result="refused" if difference.refusal else created,
            message=difference.refusal or text,
        )
    refused = [difference.name for difference in differences if difference.refusal]
    if refused:
        raise BadInputError(f"the API server refuses {', '.join(refused)}")
    if differences:
        raise typer.Exit(EXIT_DIFFERENT)


async def _plan(state: ClusterState, store: DesiredStore, desired: Desired) -> Plan:
    from headrace_operator.local.reconcile import Reconciler, StateBackend
    from headrace_operator.plan import plan

    reconciler = Reconciler(StateBackend(state), store)
    try:
        return plan(await reconciler.observe(desired), desired)
    finally:
        await reconciler.close()
