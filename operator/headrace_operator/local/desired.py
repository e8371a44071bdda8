"""The desired state of a local cluster: one manifest file for each resource, like a small Git.

`headrace up PATH` merges its manifests in, and `headrace apply FILE` stores its own; a reconciler
reads the whole set. Changes by `apply` survive the next `up` with unchanged manifests: a manifest
in PATH replaces a stored one only if it differs from what `up` read last time. `headrace delete`
marks a manifest with a deletionTimestamp, as Kubernetes does; the reconciler removes it when
everything that it described is gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec
import yaml

from headrace_operator.local.durable import replace_file, sync
from headrace_operator.plan import Desired
from headrace_operator.resources import (
    Cluster,
    ConsumerGroup,
    Deployment,
    SparkApplication,
    Topic,
    parse_resource,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from headrace_operator.local.layout import ClusterLayout
    from headrace_operator.plan import Key
    from headrace_operator.resources import Resource

__all__ = ["DesiredStore", "Revision", "cluster_of", "desired_of"]

#: Changes whenever a file of the set changes.
Revision: TypeAlias = tuple[tuple[str, int, int], ...]


class StoredStatus(msgspec.Struct, kw_only=True):
    """What the API server would store of a resource besides its manifest."""

    #: The manifest as `up` last read it; empty if only `apply` stored it.
    source_digest: str = ""
    spec_digest: str = ""
    generation: int = 0
    status: dict[str, Any] = {}


class DesiredStore:
    """The folder `desired/` of one cluster, and `statuses.json` beside it."""

    def __init__(self, layout: ClusterLayout) -> None:
        self._folder = layout.desired_directory
        self._statuses_path = layout.root / "statuses.json"

    def merge(self, resources: Sequence[Resource]) -> None:
        """Store the manifests that have changed since they were last merged."""
        statuses = self._load_statuses()
        for resource in resources:
            stored = statuses.setdefault(_name(resource), StoredStatus())
            digest = _digest(resource.document)
            if stored.source_digest != digest or not self._path_of(resource.key).exists():
                self._put(resource, stored)
            stored.source_digest = digest
        self._save_statuses(statuses)

    def put(self, resources: Iterable[Resource]) -> None:
        """Store these manifests and replace those with the same names."""
        statuses = self._load_statuses()
        for resource in resources:
            self._put(resource, statuses.setdefault(_name(resource), StoredStatus()))
        self._save_statuses(statuses)

    def mark_deleted(self, keys: Iterable[Key]) -> None:
        """Mark these resources as deleted; those that are there stay until that is complete."""
        for key in keys:
            path = self._path_of(key)
            document = _read(path)
            if document is None:
                continue
            moment = datetime.now(UTC).isoformat(timespec="seconds")
            document["metadata"].setdefault("deletionTimestamp", moment)
            _replace(path, document)

    def remove(self, keys: Iterable[Key]) -> None:
        """Remove these resources."""
        statuses = self._load_statuses()
        for key in keys:
            self._path_of(key).unlink(missing_ok=True)
            statuses.pop("/".join(key), None)
        if self._folder.is_dir():
            sync(self._folder)
        self._save_statuses(statuses)

    def load(self) -> list[Resource]:
        """Read the whole set with generations and statuses, Cluster first."""
        statuses = self._load_statuses()
        found = []
        for document in self.documents():
            resource = parse_resource(document)
            stored = statuses.get(_name(resource), StoredStatus())
            document["metadata"]["generation"] = stored.generation
            if stored.status:
                document["status"] = stored.status
            found.append(parse_resource(document))
        return sorted(found, key=lambda each: (not isinstance(each, Cluster), each.key))

    def documents(self) -> list[dict[str, Any]]:
        """Read the manifests as they are stored; another process may remove one meanwhile."""
        found = (_read(path) for path in sorted(self._folder.glob("*.yaml")))
        return [document for document in found if document is not None]

    def revision(self) -> Revision:
        """Return the state of the folder without reading the files."""
        return tuple(
            (path.name, status.st_mtime_ns, status.st_size)
            for path in sorted(self._folder.glob("*.yaml"))
            for status in _stat(path)
        )

    def record_reset(self, key: Key, request_id: str, previous: Mapping[Any, int]) -> None:
        """Record that a ConsumerGroup's reset was done, and the offsets that undo it."""
        statuses = self._load_statuses()
        stored = statuses.setdefault("/".join(key), StoredStatus())
        stored.status["lastReset"] = {
            "requestId": request_id,
            "previousOffsets": [
                {"topic": topic, "partition": partition, "offset": offset}
                for (topic, partition), offset in sorted(previous.items())
            ],
        }
        self._save_statuses(statuses)

    def record_observed(self, resources: Iterable[Resource]) -> None:
        """Record that these resources were reconciled in their present generation."""
        statuses = self._load_statuses()
        for resource in resources:
            stored = statuses.setdefault(_name(resource), StoredStatus())
            stored.status["observedGeneration"] = resource.metadata.generation
            if isinstance(resource, Topic):
                stored.status["reconciledGeneration"] = resource.metadata.generation
        self._save_statuses(statuses)

    def _put(self, resource: Resource, stored: StoredStatus) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        digest = _digest(resource.document.get("spec"))
        if digest != stored.spec_digest:
            stored.generation += 1
            stored.spec_digest = digest
        _replace(self._path_of(resource.key), resource.document)

    def _path_of(self, key: Key) -> Path:
        kind, namespace, name = key
        return self._folder / f"{kind.lower()}.{namespace}.{name}.yaml"

    def _load_statuses(self) -> dict[str, StoredStatus]:
        try:
            content = self._statuses_path.read_bytes()
        except FileNotFoundError:
            return {}
        return msgspec.json.decode(content, type=dict[str, StoredStatus])

    def _save_statuses(self, statuses: Mapping[str, StoredStatus]) -> None:
        content = msgspec.json.format(msgspec.json.encode(statuses)) + b"\n"
        if not self._statuses_path.exists() or self._statuses_path.read_bytes() != content:
            replace_file(self._statuses_path, content)


def cluster_of(resources: Iterable[Resource]) -> list[Cluster]:
    """The Clusters among these resources."""
    return [resource for resource in resources if isinstance(resource, Cluster)]


def desired_of(resources: Iterable[Resource], cluster: str) -> Desired:
    """Sort one cluster's resources into the input of `plan`. Pure."""
    listed = list(resources)
    return Desired(
        cluster=next((each for each in cluster_of(listed) if each.metadata.name == cluster), None),
        topics=tuple(
            each
            for each in listed
            if isinstance(each, Topic) and each.spec.cluster_ref.name == cluster
        ),
        groups=tuple(
            each
            for each in listed
            if isinstance(each, ConsumerGroup) and each.spec.cluster_ref.name == cluster
        ),
        applications=tuple(
            each for each in listed if isinstance(each, SparkApplication | Deployment)
        ),
        deleted=frozenset(each.key for each in listed if each.metadata.deletion_timestamp),
    )


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return cast("dict[str, Any]", yaml.safe_load(path.read_text()))
    except FileNotFoundError:
        return None


def _stat(path: Path) -> Iterator[os.stat_result]:
    with contextlib.suppress(FileNotFoundError):
        yield path.stat()


def _replace(path: Path, document: dict[str, Any]) -> None:
    replace_file(path, yaml.safe_dump(document, sort_keys=False).encode())


def _name(resource: Resource) -> str:
    return "/".join(resource.key)


def _digest(document: Any) -> str:
    content = json.dumps(document, sort_keys=True).encode()
    return hashlib.sha256(content).hexdigest()
