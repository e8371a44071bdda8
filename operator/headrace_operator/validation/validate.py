"""Validates manifests against the CRDs' own schemas, and reports the position of each problem.

The verdicts are those of a kube-apiserver with these CRDs (tests/operator/fixtures has recorded
ones), plus what only Kafka knows: the names and values of topic settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace_operator.resources.common import API_VERSION, GROUP
from headrace_operator.resources.documents import Document, ManifestError, read_documents
from headrace_operator.resources.manifests import Resource, resource_of
from headrace_operator.validation.defaults import with_defaults
from headrace_operator.validation.problems import (
    ManifestProblem,
    SchemaProblem,
    nearest,
    path_text,
)
from headrace_operator.validation.rules import check_rules
from headrace_operator.validation.schemas import resource_schemas
from headrace_operator.validation.settings import check_broker_settings, check_topic_settings
from headrace_operator.validation.structure import check_structure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from headrace_operator.plan import Key


class InvalidManifestsError(ManifestError):
    """Manifests with problems; the message lists all of them, one per line."""

    def __init__(self, problems: tuple[ManifestProblem, ...]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


@dataclass(frozen=True, kw_only=True)
class Validated:
    """The resources that were read, and the problems. Resources with problems are left out."""

    resources: tuple[Resource, ...]
    problems: tuple[ManifestProblem, ...]


def load_valid_manifests(
    path: Path, *, old: Mapping[Key, dict[str, Any]] | None = None
) -> tuple[Resource, ...]:
    """Read and validate. Raises ManifestError, or InvalidManifestsError with every problem."""
    validated = validate_manifests(path, old=old)
    if validated.problems:
        raise InvalidManifestsError(validated.problems)
    return validated.resources


def validate_manifests(path: Path, *, old: Mapping[Key, dict[str, Any]] | None = None) -> Validated:
    """Read a file, folder or kustomization and validate each resource against its schema.

    `old` holds the documents that were applied before, for the rules about changes. Raises
    ManifestError if something cannot be read at all.
    """
    resources: list[Resource] = []
    problems: list[ManifestProblem] = []
    places: dict[Key, Document] = {}
    for document in read_documents(path):
        found = [_placed(document, problem) for problem in _document_problems(document, old or {})]
        problems += found
        if found:
            continue
        resource = resource_of(document)
        if resource.key in places:
            first = places[resource.key].where()
            reason = f"the same resource stands at {first}; delete one of them"
            problems.append(
                _placed(document, SchemaProblem(path=("metadata", "name"), reason=reason))
            )
            continue
        places[resource.key] = document
        resources.append(resource)
    return Validated(resources=tuple(resources), problems=tuple(problems))


def validate_object(
    value: dict[str, Any], old: dict[str, Any] | None = None
) -> list[SchemaProblem]:
    """Validate one decoded object against its CRD; kinds of other groups have no problems."""
    api_version, kind = str(value.get("apiVersion", "")), str(value.get("kind", ""))
    definition = resource_schemas().get((api_version, kind))
    if definition is None:
        return list(_unknown_kind(api_version, kind))
    complete = with_defaults(value, definition.schema)
    problems = list(check_structure(complete, definition.schema))
    if problems:
        # As in the API server: rules are evaluated only on structurally valid objects.
        return problems
    before = None if old is None else with_defaults(old, definition.schema)
    problems = list(check_rules(complete, before, definition.schema))
    if not problems and (check := _SETTINGS_CHECKS.get(kind)):
        problems += check(complete["spec"].get("config", {}))
    return problems


_SETTINGS_CHECKS = {"Cluster": check_broker_settings, "Topic": check_topic_settings}


def _document_problems(
    document: Document, old: Mapping[Key, dict[str, Any]]
) -> Iterator[SchemaProblem]:
    value = document.value
    missing = [key for key in ("apiVersion", "kind", "metadata") if key not in value]
    for field in missing:
        yield SchemaProblem(path=(field,), reason="required, and missing; add it")
    metadata = value.get("metadata")
    if missing or not isinstance(metadata, dict):
        return
    key = (
        str(value["kind"]),
        str(metadata.get("namespace") or "default"),
        str(metadata.get("name")),
    )
    yield from validate_object(value, old.get(key))


def _unknown_kind(api_version: str, kind: str) -> Iterator[SchemaProblem]:
    if api_version.partition("/")[0] != GROUP:
        return
    if api_version != API_VERSION:
        reason = f"{api_version} is not served; write {API_VERSION}"
        yield SchemaProblem(path=("apiVersion",), reason=reason)
        return
    kinds = [known for _, known in resource_schemas()]
    hint = nearest(kind, kinds) or f"there are {', '.join(sorted(kinds))}"
    yield SchemaProblem(path=("kind",), reason=f"{GROUP} has no kind {kind}; {hint}")


def _placed(document: Document, problem: SchemaProblem) -> ManifestProblem:
    value = document.value
    metadata = value.get("metadata")
    name = metadata.get("name", "?") if isinstance(metadata, dict) else "?"
    return ManifestProblem(
        file=document.file,
        line=document.line_of(problem.path),
        resource=f"{value.get('kind', '?')}/{name}",
        path=path_text(problem.path),
        reason=problem.reason,
    )
