"""`headrace support-bundle`: objects, events and logs of a namespace as one archive."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from headrace_cli.errors import CommandError
from headrace_cli.kubernetes.choice import Choice, chosen, open_connection
from headrace_cli.support_bundle import collect_bundle, write_bundle

__all__ = ["support_bundle"]


def support_bundle(
    file: Annotated[Path, typer.Argument(help="The archive to write.")] = Path(
        "headrace-support.tar.gz"
    ),
    *,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Default: the context's own.")
    ] = None,
    context: Annotated[
        str | None, typer.Option(help="A context of the kubeconfig. Default: the current one.")
    ] = None,
    operator_namespace: Annotated[
        str | None,
        typer.Option(help="Where the operator runs. Default: as the Leases of operators say."),
    ] = None,
) -> None:
    """Write what is needed to find a problem; Secrets are not read, and nothing is changed."""
    from headrace_operator.kubernetes.api.client import KubernetesClient, KubernetesError

    said = chosen()
    choice = Choice(
        context=context or (said.context if said else None),
        namespace=namespace or (said.namespace if said else None),
        at_end=lambda _: None,
    )
    connection, where = open_connection(choice)

    async def collect() -> dict[str, str]:
        async with KubernetesClient(connection) as client:
            return await collect_bundle(client, where, operator_namespace)

    try:
        files = asyncio.run(collect())
    except KubernetesError as error:
        raise CommandError(f"namespace {where}: {error}") from error
    if not files:
        raise CommandError(f"namespace {where} has nothing of Headrace; name another with -n")
    try:
        write_bundle(file, files)
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror}") from error
    typer.echo(
        f"{file}: {len(files)} files of namespace {where}; look through it before you send it"
    )
