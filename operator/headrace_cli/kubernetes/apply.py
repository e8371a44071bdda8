"""`headrace apply` in Kubernetes: a server-side apply of each manifest, as kubectl does it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace_cli.errors import CommandError
from headrace_cli.kubernetes.choice import open_connection
from headrace_cli.kubernetes.diff import FIELD_MANAGER, manifest_text, read_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from headrace_cli.kubernetes.choice import Choice
    from headrace_operator.kubernetes.api.client import KubernetesClient, Object

__all__ = ["Result", "apply_in_kubernetes"]

#: Kinds that others need come first.
FIRST = ("Namespace", "CustomResourceDefinition")


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of one object: kubectl's words, or `refused` with the reason."""

    kind: str
    name: str
    namespace: str | None
    result: str
    message: str = ""


def apply_in_kubernetes(
    file: Path, choice: Choice, on_result: Callable[[Result], None], *, force: bool
) -> None:
    """Apply manifests; `on_result` gets each result. Raises CommandError with the refusals."""
    from headrace_operator.kubernetes.api.client import KubernetesClient

    objects = sorted(read_objects(file), key=lambda each: each["kind"] not in FIRST)
    connection, namespace = open_connection(choice)

    async def run() -> list[str]:
        async with KubernetesClient(connection) as client:
            return await _apply_all(client, objects, namespace, on_result, force=force)

    refused = asyncio.run(run())
    if refused:
        raise CommandError("\n".join(refused))


async def _apply_all(
    client: KubernetesClient,
    objects: Sequence[Object],
    namespace: str,
    on_result: Callable[[Result], None],
    *,
    force: bool,
) -> list[str]:
    from headrace_operator.kubernetes.api.client import KubernetesError

    refused = []
    for each in objects:
        named = f"{each['kind'].lower()}/{each['metadata']['name']}"
        kind, name = each["kind"], each["metadata"]["name"]
        try:
            place, verdict = await _apply(client, each, namespace, force=force)
            on_result(Result(kind=kind, name=name, namespace=place, result=verdict))
        except KubernetesError as error:
            if not error.is_about_object:
                raise CommandError(str(error)) from error
            hint = "; --force-conflicts takes them over" if error.is_conflict else ""
            refused.append(f"{named}: {error.message}{hint}")
            place = each["metadata"].get("namespace") or namespace
            on_result(
                Result(
                    kind=kind,
                    name=name,
                    namespace=place,
                    result="refused",
                    message=f"{error.message}{hint}",
                )
            )
    return refused


async def _apply(
    client: KubernetesClient, wanted: Object, namespace: str, *, force: bool
) -> tuple[str | None, str]:
    """Apply one object; return its namespace and the result, in kubectl's words."""
    kind, metadata = wanted["kind"], wanted["metadata"]
    where = await client.resource_type(wanted["apiVersion"], kind)
    place = (metadata.get("namespace") or namespace) if where.is_namespaced else None
    before = await client.get(wanted["apiVersion"], kind, place, metadata["name"])
    if place is not None:
        wanted = {**wanted, "metadata": {**metadata, "namespace": place}}
    after = await client.apply(wanted, field_manager=FIELD_MANAGER, force=force)
    if before is None:
        return place, "created"
    # The resourceVersion does not tell: the API server may write anew who owns which field.
    unchanged = manifest_text(before) == manifest_text(after)
    return place, "unchanged" if unchanged else "configured"
