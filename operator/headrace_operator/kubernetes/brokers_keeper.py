"""Keeps objects as they were rendered: applies what is not there or differs, and nothing else.

An object that is as it should be costs no request. What it was rendered from is named in an
annotation, so that a field that is rendered no more is noticed as well.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace_operator.kubernetes.cache import Store
    from headrace_operator.kubernetes.client import KubernetesClient
    from headrace_operator.kubernetes.transport import Object

__all__ = ["WATCHED_KINDS", "ObjectKeeper", "includes"]

RENDERED_ANNOTATION = "headrace.dev/rendered"
#: Kinds that the informer's store has. Others are asked for once, and known from then on.
WATCHED_KINDS = frozenset({"StatefulSet", "Service", "ConfigMap", "PersistentVolumeClaim", "Pod"})


class ObjectKeeper:
    """Applies objects that differ."""

    def __init__(self, client: KubernetesClient, store: Store) -> None:
        """The store learns at once what was applied."""
        self._client = client
        self._store = store
        #: Where the API server writes something its own way (a quantity): what was applied, by uid.
        self._settled: dict[str, tuple[str, Any]] = {}
        self._unwatched: dict[tuple[str, str, str], Object] = {}

    async def keep(self, obj: Object) -> Object:
        """Return the object as it is now, applied if need be."""
        metadata = obj["metadata"]
        digest = _digest(obj)
        annotations = metadata.get("annotations", {}) | {RENDERED_ANNOTATION: digest}
        wanted = {**obj, "metadata": {**metadata, "annotations": annotations}}
        live = await self._live(obj)
        if live is not None and self._is_settled(wanted, live, digest):
            return live
        written = await self._client.apply(wanted)
        written["metadata"].pop("managedFields", None)
        self._settled[written["metadata"]["uid"]] = (digest, _version(written))
        self._learn(written)
        return written

    def forget(self, obj: Object) -> None:
        """Forget what was deleted."""
        self._settled.pop(obj["metadata"].get("uid", ""), None)
        self._unwatched.pop(_key(obj), None)
        self._store.remove(obj)

    def _is_settled(self, wanted: Object, live: Object, digest: str) -> bool:
        if live["metadata"].get("deletionTimestamp"):
            return False
        annotations = live["metadata"].get("annotations") or {}
        if annotations.get(RENDERED_ANNOTATION) != digest:
            return False
        if includes(live, wanted):
            return True
        return self._settled.get(live["metadata"]["uid"]) == (digest, _version(live))

    async def _live(self, obj: Object) -> Object | None:
        metadata = obj["metadata"]
        if obj["kind"] in WATCHED_KINDS:
            return self._store.get(obj["kind"], metadata["namespace"], metadata["name"])
        known = self._unwatched.get(_key(obj))
        if known is None:
            known = await self._client.get(
                obj["apiVersion"], obj["kind"], metadata["namespace"], metadata["name"]
            )
            if known is not None:
                self._unwatched[_key(obj)] = known
        return known

    def _learn(self, obj: Object) -> None:
        if obj["kind"] in WATCHED_KINDS:
            self._store.upsert(obj)
        else:
            self._unwatched[_key(obj)] = obj


def includes(live: Any, wanted: Any) -> bool:
    """Whether all that is wanted is so. The API server adds defaults; it takes nothing away."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(
            key in live and includes(live[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(live, list) and len(live) == len(wanted) and all(map(includes, live, wanted))
        )
    return bool(live == wanted)


def _version(obj: Object) -> Any:
    """Return what changes when somebody changes the spec, and not with every status."""
    metadata = obj["metadata"]
    return metadata.get("generation") or metadata["resourceVersion"]


def _digest(obj: Object) -> str:
    return hashlib.sha256(json.dumps(obj, sort_keys=True).encode()).hexdigest()[:16]


def _key(obj: Object) -> tuple[str, str, str]:
    metadata = obj["metadata"]
    return (obj["kind"], metadata["namespace"], metadata["name"])
