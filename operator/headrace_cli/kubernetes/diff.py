"""What applying manifests to a Kubernetes cluster would change, by a server-side dry run.

The API server fills in defaults, merges fields of other managers, and checks rules and admission;
nothing is written.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from headrace_cli.errors import BadInputError, CommandError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from headrace_operator.kubernetes.api.client import KubernetesClient, Object

__all__ = ["Difference", "compare", "manifest_text", "read_objects"]

#: kubectl's own, so that fields applied by kubectl are not shown as taken from another manager.
FIELD_MANAGER = "kubectl"
# What every write changes, and what does not come from manifests.
_NOISE = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One object that would be created (no `before`), changed, or refused."""

    name: str
    before: str
    after: str
    refusal: str = ""

    def lines(self) -> Iterator[str]:
        """Yield the difference in the format of `diff -u`."""
        if self.refusal:
            yield f"{self.name}: refused: {self.refusal}"
            return
        yield from difflib.unified_diff(
            self.before.splitlines(),
            self.after.splitlines(),
            f"live/{self.name}" if self.before else "/dev/null",
            f"applied/{self.name}",
            lineterm="",
        )


def read_objects(path: Path) -> list[Object]:
    """Read manifests of any kind. Raises BadInputError."""
    from headrace_operator.resources import ManifestError
    from headrace_operator.resources.documents import read_documents

    try:
        found = [document.value for document in read_documents(path)]
    except ManifestError as error:
        raise BadInputError(str(error)) from error
    for each in found:
        named = isinstance(each, dict) and isinstance(each.get("metadata"), dict)
        if not named or not {"apiVersion", "kind"} <= each.keys() or "name" not in each["metadata"]:
            raise BadInputError(f"{path}: a manifest needs apiVersion, kind and metadata.name")
    return found


async def compare(
    client: KubernetesClient, objects: Iterable[Object], namespace: str
) -> list[Difference]:
    """Return the changes; raises CommandError if the API server does not answer."""
    # What the manifests create themselves does not exist yet, and the dry run cannot know it.
    objects = list(objects)
    brought = {each["metadata"]["name"] for each in objects if each["kind"] == "Namespace"}
    differences = []
    for each in objects:
        found = await _compare(client, each, namespace, brought)
        if found is not None:
            differences.append(found)
    return differences


async def _compare(
    client: KubernetesClient, wanted: Object, namespace: str, brought: set[str]
) -> Difference | None:
    from headrace_operator.kubernetes.api.client import KubernetesError

    metadata = wanted["metadata"]
    named = f"{wanted['kind']}/{metadata['name']}"
    try:
        where = await client.resource_type(wanted["apiVersion"], wanted["kind"])
        place = metadata.get("namespace") or namespace if where.is_namespaced else None
        path = where.path(place, metadata["name"])
        named = f"{place}/{named}" if place else named
        live = await client.get(wanted["apiVersion"], wanted["kind"], place, metadata["name"])
        if place:
            wanted = {**wanted, "metadata": {**metadata, "namespace": place}}
        applied = await client.write(
            "PATCH",
            path,
            wanted["kind"],
            body=wanted,
            query={"fieldManager": FIELD_MANAGER, "force": "true", "dryRun": "All"},
            content_type="application/apply-patch+yaml",
        )
    except KubernetesError as error:
        if error.is_not_found and metadata.get("namespace") in brought:
            return Difference(name=named, before="", after=manifest_text(wanted))
        if error.status in {0, 401}:
            raise CommandError(str(error)) from error
        return Difference(name=named, before="", after="", refusal=error.message)
    before, after = "" if live is None else manifest_text(live), manifest_text(applied)
    return None if before == after else Difference(name=named, before=before, after=after)


def manifest_text(obj: Object) -> str:
    """Return the part of an object that manifests are about, as YAML."""
    kept = {key: value for key, value in obj.items() if key != "status"}
    metadata: dict[str, Any] = {
        key: value for key, value in obj["metadata"].items() if key not in _NOISE
    }
    annotations = dict(metadata.pop("annotations", None) or {})
    annotations.pop(_LAST_APPLIED, None)
    if annotations:
        metadata["annotations"] = annotations
    return yaml.safe_dump({**kept, "metadata": metadata}, sort_keys=True)
