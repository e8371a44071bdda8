"""The informer's store: the last seen state of every watched object; reading needs no request.

Owns only the objects. Kubernetes' events feed it. Readers get the stored dict itself and must not
change it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace_operator.kubernetes.api.transport import Object

__all__ = [
    "CLUSTER_LABEL",
    "MANAGED_BY",
    "NODE_ID_LABEL",
    "POOL_LABEL",
    "Store",
    "trim",
]

#: Labels of everything that the operator creates. Besides Headrace's own kinds and
#: SparkApplications, only objects with MANAGED_BY are kept.
MANAGED_BY = {"app.kubernetes.io/managed-by": "headrace"}
CLUSTER_LABEL = "headrace.dev/cluster"
POOL_LABEL = "headrace.dev/pool"
NODE_ID_LABEL = "headrace.dev/node-id"
#: By these, objects are found without looking at all others: a pass asks dozens of times, and there
#: may be a thousand Clusters.
INDEXED_LABELS = (CLUSTER_LABEL, "sparkoperator.k8s.io/app-name")


class Store:
    """Objects by kind, namespace and name."""

    def __init__(self) -> None:
        """The store is empty before the first list."""
        #: Watched kinds: an object of such a kind that is missing here does not exist.
        self.watched: frozenset[str] = frozenset()
        self._objects: dict[str, dict[tuple[str, str], Object]] = defaultdict(dict)
        #: By kind, namespace, an indexed label and its value.
        self._labelled: dict[tuple[str, ...], dict[tuple[str, str], Object]] = defaultdict(dict)

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """Return an object, or None."""
        return self._objects[kind].get((namespace, name))

    def list(
        self, kind: str, namespace: str | None = None, labels: Mapping[str, str] | None = None
    ) -> list[Object]:
        """Return objects of a kind, by namespace and by labels, sorted by name."""
        found = self._objects[kind]
        for label in INDEXED_LABELS:
            if namespace is not None and labels and label in labels:
                found = self._labelled.get((kind, namespace, label, labels[label]), {})
                break
        matching = (
            (key, obj)
            for key, obj in found.items()
            if (namespace is None or key[0] == namespace) and _has_labels(obj, labels)
        )
        return [obj for _, obj in sorted(matching, key=lambda item: item[0])]

    def iterate(self, kind: str) -> Iterator[Object]:
        """Yield objects of a kind in any order, without copying."""
        return iter(self._objects[kind].values())

    def count(self, kind: str) -> int:
        """How many objects of a kind there are."""
        return len(self._objects[kind])

    def upsert(self, obj: Object) -> Object | None:
        """Store an object's present state; return its previous one."""
        key = _key(obj)
        objects = self._objects[obj["kind"]]
        previous = objects.get(key)
        if previous is not None:
            self._unlabel(previous)
        objects[key] = obj
        for bucket in _buckets(obj):
            self._labelled[bucket][key] = obj
        return previous

    def learn(self, obj: Object) -> None:
        """Store the result of a write, unless the watch has delivered a newer state meanwhile."""
        known = self._objects[obj["kind"]].get(_key(obj))
        if known is None or not _is_older(obj["metadata"], known["metadata"]):
            self.upsert(obj)

    def remove(self, obj: Object) -> Object | None:
        """Remove an object; return its last state."""
        previous = self._objects[obj["kind"]].pop(_key(obj), None)
        if previous is not None:
            self._unlabel(previous)
        return previous

    def _unlabel(self, obj: Object) -> None:
        for bucket in _buckets(obj):
            labelled = self._labelled[bucket]
            labelled.pop(_key(obj), None)
            if not labelled:
                del self._labelled[bucket]


def trim(obj: Object) -> Object:
    """Drop unused fields, in place. An application keeps the managers of its status."""
    managers = obj["metadata"].pop("managedFields", None)
    if obj["kind"] == "SparkApplication" and managers:
        obj["metadata"]["managedFields"] = [
            {"manager": each.get("manager"), "subresource": "status"}
            for each in managers
            if each.get("subresource") == "status"
        ]
    return obj


def _is_older(metadata: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Whether metadata is of an earlier state (resource versions are numbers, KEP-5504)."""
    return int(metadata.get("resourceVersion", 0)) < int(known.get("resourceVersion", 0))


def _key(obj: Mapping[str, Any]) -> tuple[str, str]:
    metadata = obj["metadata"]
    return (metadata.get("namespace", ""), metadata["name"])


def _buckets(obj: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return where an object is found by its labels."""
    metadata = obj["metadata"]
    has, namespace = metadata.get("labels") or {}, metadata.get("namespace", "")
    return [(obj["kind"], namespace, each, has[each]) for each in INDEXED_LABELS if each in has]


def _has_labels(obj: Mapping[str, Any], labels: Mapping[str, str] | None) -> bool:
    if not labels:
        return True
    has = obj["metadata"].get("labels") or {}
    return all(has.get(key) == value for key, value in labels.items())
