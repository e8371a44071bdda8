"""`headrace apply` in Kubernetes: a server-side apply of each manifest, as kubectl does it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import typer

from headrace_cli.errors import CommandError
from headrace_cli.kubernetes.choice import open_connection
from headrace_cli.kubernetes.diff import FIELD_MANAGER, read_objects

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headrace_cli.kubernetes.choice import Choice
    from headrace_operator.kubernetes.api.client import KubernetesClient, Object

__all__ = ["apply_in_kubernetes"]

#: Kinds that others need come first.
FIRST = ("Namespace", "CustomResourceDefinition")


def apply_in_kubernetes(file: Path, choice: Choice, *, force: bool) -> None:
    """Apply manifests, and report the result of each. Raises CommandError with the refusals."""
    from headrace_operator.kubernetes.api.client import KubernetesClient

    objects = sorted(read_objects(file), key=lambda each: each["kind"] not in FIRST)
    connection, namespace = open_connection(choice)

    async def run() -> list[str]:
        async with KubernetesClient(connection) as client:
            return await _apply_all(client, objects, namespace, force=force)

    refused = asyncio.run(run())
    if refused:
        raise CommandError("\n".join(refused))


async def _apply_all(
    client: KubernetesClient, objects: Sequence[Object], namespace: str, *, force: bool
) -> list[str]:
    from headrace_operator.kubernetes.api.client import KubernetesError

    refused = []
    for each in objects:
        named = f"{each['kind'].lower()}/{each['metadata']['name']}"
        try:
            typer.echo(f"{named} {await _apply(client, each, namespace, force=force)}")
        except KubernetesError as error:
            if not error.is_about_object:
                raise CommandError(str(error)) from error
            hint = "; --force-conflicts takes them over" if error.is_conflict else ""
            refused.append(f"{named}: {error.message}{hint}")
    return refused


async def _apply(client: KubernetesClient, wanted: Object, namespace: str, *, force: bool) -> str:
    """Apply one object; return the result, in kubectl's words."""
    kind, metadata = wanted["kind"], wanted["metadata"]
    where = await client.resource_type(wanted["apiVersion"], kind)
    place = (metadata.get("namespace") or namespace) if where.is_namespaced else None
    before = await client.get(wanted["apiVersion"], kind, place, metadata["name"])
    if place is not None:
        wanted = {**wanted, "metadata": {**metadata, "namespace": place}}
    after = await client.apply(wanted, field_manager=FIELD_MANAGER, force=force)
    if before is None:
        return "created"
    unchanged = before["metadata"]["resourceVersion"] == after["metadata"]["resourceVersion"]
    return "unchanged" if unchanged else "configured"
