"""Keeps objects as rendered: applies those that are missing or differ, and nothing else.

An up-to-date object costs no request. An annotation has a digest of what it was rendered from, so
that a field that is no longer rendered is noticed as well. An object with a wanted name that
another client made is neither changed nor deleted.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import structlog

from headrace_operator.apply import Failure
from headrace_operator.kubernetes.api.client import KubernetesError
from headrace_operator.kubernetes.owners import ForeignObjectError, check_owner
from headrace_operator.plan import Action

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace_operator.kubernetes.api.cache import Store
    from headrace_operator.kubernetes.api.client import KubernetesClient
    from headrace_operator.kubernetes.api.transport import Object
    from headrace_operator.plan import Key

__all__ = ["ObjectKeeper", "Refusals", "includes"]

RENDERED_ANNOTATION = "headrace.dev/rendered"
#: Maps that server-side apply replaces as a whole: one label more, and another pod is selected.
WHOLE_FIELDS = frozenset({"selector", "podSelector", "labelSelector", "nodeSelector"})

_log = structlog.get_logger("headrace.operator.brokers")


@dataclass(frozen=True, kw_only=True)
class KeepObject(Action):
    """A write of a Cluster's object. It is in no plan: it only serves to report its refusal."""

    kind: str
    name: str

    def describe(self) -> str:
        """See Action."""
        return f"{self.kind} {self.name}"


class Refusals:
    """The API server's refusals in one pass: each concerns one object, and blocks nothing else."""

    def __init__(self, cluster: Key) -> None:
        """`cluster`: the owner of the objects."""
        self._cluster = cluster
        self.failures: list[Failure] = []
        #: Kinds of which a write took as long as the API server may take: the others would, too.
        self.slow: set[str] = set()

    @contextmanager
    def recorded(self, obj: Mapping[str, Any]) -> Iterator[None]:
        """Record a refusal to write this object. Raises any other KubernetesError."""
        try:
            yield
        except ForeignObjectError as error:
            self._add(obj, str(error), is_retriable=False)
        except KubernetesError as error:
            if not error.is_about_object:
                raise
            if error.is_timeout:
                self.slow.add(obj["kind"])
            is_retriable = not error.is_refusal
            self._add(obj, f"{error.reason}: {error.message}", is_retriable=is_retriable)

    def _add(self, obj: Mapping[str, Any], message: str, *, is_retriable: bool) -> None:
        kind, name = obj["kind"], obj["metadata"]["name"]
        _log.warning("refused", kind=kind, name=name, cluster=self._cluster, error=message)
        action = KeepObject(resource=self._cluster, kind=kind, name=name)
        self.failures.append(Failure(action=action, message=message, is_retriable=is_retriable))

    def __contains__(self, kind: str) -> bool:
        """Whether an object of this kind was refused."""
        kinds = {each.action.kind for each in self.failures if isinstance(each.action, KeepObject)}
        return kind in kinds


class ObjectKeeper:
    """Applies objects that differ."""

    def __init__(self, client: KubernetesClient, store: Store) -> None:
        """The store gets the result of each write at once."""
        self._client = client
        self._store = store
        #: What was applied, by uid, because the API server normalises some values (quantities).
        self._settled: dict[str, tuple[str, Any]] = {}

    async def keep(self, obj: Object) -> Object:
        """Return the object's present state, applied if needed.

        Raises ForeignObjectError and KubernetesError.
        """
        metadata = obj["metadata"]
        digest = _digest(obj)
        annotations = metadata.get("annotations", {}) | {RENDERED_ANNOTATION: digest}
        wanted = {**obj, "metadata": {**metadata, "annotations": annotations}}
        live = await self.find(obj)
        if live is not None:
            check_owner(live, obj)
            if live["metadata"].get("deletionTimestamp"):
                message = "it is being deleted, and made again when it is gone"
                raise KubernetesError(HTTPStatus.CONFLICT, "Conflict", message)
            if self._is_settled(wanted, live, digest):
                return live
        # Another client may create it at this very moment: nothing is forced.
        written = await self._client.apply(wanted, force=live is not None)
        written["metadata"].pop("managedFields", None)
        self._settled[written["metadata"]["uid"]] = (digest, _version(written))
        if obj["kind"] in self._store.watched:
            self._store.learn(written)
        return written

    async def find(self, obj: Object) -> Object | None:
        """Return the present object of this kind and name, whoever owns it."""
        metadata = obj["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        if obj["kind"] in self._store.watched:
            known = self._store.get(obj["kind"], namespace, name)
            if known is not None:
                return known
        # Foreign objects are not watched, and the event of an own one may still be on the way.
        return await self._client.get(obj["apiVersion"], obj["kind"], namespace, name)

    def forget(self, obj: Object) -> None:
        """Remove a deleted object from the store."""
        self._settled.pop(obj["metadata"].get("uid", ""), None)
        self._store.remove(obj)

    def _is_settled(self, wanted: Object, live: Object, digest: str) -> bool:
        annotations = live["metadata"].get("annotations") or {}
        if annotations.get(RENDERED_ANNOTATION) != digest:
            return False
        if includes(live, wanted):
            return True
        # Who takes labels or the owner away changes no generation.
        if not includes(live["metadata"], wanted["metadata"]):
            return False
        return self._settled.get(live["metadata"]["uid"]) == (digest, _version(live))


def includes(live: Any, wanted: Any) -> bool:
    """Whether the object has all wanted fields. The API server only adds defaults."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(
            key in live
            and (live[key] == value if key in WHOLE_FIELDS else includes(live[key], value))
            for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(live, list) and len(live) == len(wanted) and all(map(includes, live, wanted))
        )
    return bool(live == wanted)


def _version(obj: Object) -> Any:
    """Return a value that changes with the spec, but not with the status."""
    metadata = obj["metadata"]
    return metadata.get("generation") or metadata["resourceVersion"]


def _digest(obj: Object) -> str:
    return hashlib.sha256(json.dumps(obj, sort_keys=True).encode()).hexdigest()[:16]
