"""Turns documents into typed resources."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from headrace_operator.resources.cluster import Cluster
from headrace_operator.resources.common import API_VERSION, Object, OpaqueObject
from headrace_operator.resources.consumer_group import ConsumerGroup
from headrace_operator.resources.documents import Document, ManifestError, read_documents
from headrace_operator.resources.topic import Topic
from headrace_operator.resources.workloads import SPARK_API_VERSION, Deployment, SparkApplication

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

Resource: TypeAlias = Cluster | Topic | ConsumerGroup | SparkApplication | Deployment | OpaqueObject

MODELS: dict[tuple[str, str], type[Resource]] = {
    (API_VERSION, "Cluster"): Cluster,
    (API_VERSION, "Topic"): Topic,
    (API_VERSION, "ConsumerGroup"): ConsumerGroup,
    (SPARK_API_VERSION, "SparkApplication"): SparkApplication,
    ("apps/v1", "Deployment"): Deployment,
}


def load_manifests(path: Path) -> list[Resource]:
    """Read every resource of a file, a folder or a kustomization, in the order written.

    Types are checked, but not the CRDs' schemas: `headrace_operator.validation` does that.
    Raises ManifestError, whose message begins with `file:line:`.
    """
    return [resource_of(document) for document in read_documents(path)]


def resource_of(document: Document) -> Resource:
    """Return the typed resource of one document. Raises ManifestError."""
    for key in ("apiVersion", "kind", "metadata"):
        if key not in document.value:
            raise ManifestError(f"{document.where()}: a resource needs {key}")
    try:
        return parse_resource(document.value)
    except msgspec.ValidationError as error:
        kind = document.value["kind"]
        name = (document.value["metadata"] or {}).get("name", "?")
        path = error_path(str(error))
        raise ManifestError(f"{document.where(path)}: {kind}/{name}: {error}") from error


def parse_resource(value: Mapping[str, Any]) -> Resource:
    """Return the typed resource of a decoded object. Raises msgspec.ValidationError."""
    model = MODELS.get((str(value["apiVersion"]), str(value["kind"])), OpaqueObject)
    resource = msgspec.convert(_with_integers(value), model, from_attributes=False)
    return msgspec.structs.replace(resource, document=dict(value))


def _with_integers(value: Any) -> Any:
    # JSON Schema, and so the API server, accepts 3.0 as an integer.
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {key: _with_integers(item) for key, item in value.items()}
        case list():
            return [_with_integers(item) for item in value]
        case _:
            return value


def to_document(resource: Object) -> dict[str, Any]:
    """Return the resource for writing: JSON types, without defaults."""
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(resource))
    del document["document"]
    if not document.get("status"):
        document.pop("status", None)
    return document


def error_path(message: str) -> tuple[str | int, ...]:
    """Return the path at the end of msgspec's message (``at `$.spec.pools[0]` ``)."""
    _, marker, expression = message.rpartition(" - at `$")
    if not marker:
        return ()
    path: list[str | int] = []
    for part in expression.rstrip("`").replace("[", ".[").split("."):
        if part.startswith("["):
            index = part.strip("[]")
            if index.isdigit():
                path.append(int(index))
        elif part:
            path.append(part)
    return tuple(path)
