"""`headrace up PATH`: run the manifests of a folder on this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace_cli.errors import (
    EXIT_FAILURE,
    EXIT_SUCCESS,
    BadInputError,
    CommandError,
)
from headrace_cli.kubernetes.choice import refuse_kubernetes
from headrace_cli.options import DataDirectory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_cli.up.session import SessionOptions
    from headrace_operator.resources import Cluster, Resource

__all__ = ["up"]


def up(
    path: Annotated[Path, typer.Argument(help="Manifest, folder of manifests or kustomization.")],
    *,
    for_: Annotated[
        str | None,
        typer.Option("--for", help="End by itself after this time (90s, 5m), with a summary."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", help="CPU readings a second for each CPU.", min=0.01, max=10_000),
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="Run SparkApplications.")
    ] = True,
    data_dir: DataDirectory = Path(".headrace"),
) -> None:
    """Run a Cluster, its topics, producers and Spark jobs on this machine until Ctrl-C.

    Data stays for the next run; `headrace down --delete-data` removes it. With --for the exit
    status is 0 only if every job wrote results.
    """
    refuse_kubernetes("kubectl apply, or `headrace apply`,")
    from headrace_cli.manifests import load_valid_manifests
    from headrace_cli.positions import parse_duration
    from headrace_cli.up.session import SessionOptions
    from headrace_operator.local.desired import DesiredStore
    from headrace_operator.local.layout import ClusterLayout
    from headrace_operator.local.state import LockHeldError, exclusive_lock

    duration = parse_duration(for_).total_seconds() if for_ else None
    resources = load_valid_manifests(path)
    cluster = _only_cluster(resources, path)
    layout = ClusterLayout(root=data_dir / cluster.metadata.name)
    options = SessionOptions(
        cluster=cluster.metadata.name,
        layout=layout,
        duration_seconds=duration,
        rate=rate,
        has_jobs=spark,
    )
    try:
        with exclusive_lock(layout.up_lock, wait=False):
            layout.create()
            DesiredStore(layout).merge(resources)
            status = asyncio.run(_run(options))
    except LockHeldError:
        raise CommandError(
            f"cluster {cluster.metadata.name} in {data_dir} is already up in another process; "
            "stop it there, or with `headrace down`"
        ) from None
    raise typer.Exit(status)


async def _run(options: SessionOptions) -> int:
    from headrace_cli.up.display import Status, open_display
    from headrace_cli.up.session import Session, describe_summary
    from headrace_operator.local.backend import BrokerNotReadyError

    display = open_display(Status(cluster=options.cluster))
    session = Session(options, display)
    try:
        await session.run()
    except BrokerNotReadyError as error:
        raise CommandError(str(error)) from error
    finally:
        display.close()
    for line in describe_summary(session.summary):
        typer.echo(line)
    if options.duration_seconds is not None and not session.summary.has_results:
        typer.echo("no results arrived", err=True)
        return EXIT_FAILURE
    return EXIT_SUCCESS


def _only_cluster(resources: Sequence[Resource], path: Path) -> Cluster:
    from headrace_operator.local.desired import cluster_of

    clusters = cluster_of(resources)
    if len(clusters) != 1:
        names = ", ".join(cluster.metadata.name for cluster in clusters) or "none"
        raise BadInputError(f"{path}: `up` runs exactly one Cluster; found: {names}")
    return clusters[0]
