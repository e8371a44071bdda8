"""Topics and ConsumerGroups, typed, indexed by their Cluster and by their name in the brokers.

Owns these objects and two indexes. Fields that only the API server needs are dropped, so thousands
of objects fit in a few megabytes.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

from headrace_operator.resources import ConsumerGroup, Topic, parse_resource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace_operator.kubernetes.api.transport import Object
    from headrace_operator.plan import Key

__all__ = [
    "ClusterKey",
    "Managed",
    "Register",
    "Version",
    "age_of",
    "cluster_key",
    "is_paused",
    "parse_managed",
    "retained",
    "version_of",
]

Managed: TypeAlias = Topic | ConsumerGroup
#: Namespace and name of a Cluster, whether it exists or not.
ClusterKey: TypeAlias = tuple[str, str]
#: Uid and generation.
Version: TypeAlias = tuple[str, int]
#: Cluster, kind, and the topic's name or the group's id.
_Identity: TypeAlias = tuple[ClusterKey, str, str]
_K = TypeVar("_K")
#: A deletionTimestamp if none was seen; only its presence counts.
_GONE = "1970-01-01T00:00:00Z"


def parse_managed(obj: Object) -> Managed | None:
    """Return the typed resource; None for one that the CRD would reject (an older version)."""
    try:
        resource = parse_resource(obj)
    except (msgspec.ValidationError, KeyError):
        return None
    if not isinstance(resource, Topic | ConsumerGroup):
        return None
    return msgspec.structs.replace(resource, document={})


def cluster_key(resource: Managed) -> ClusterKey:
    """Return the Cluster that a resource refers to."""
    reference = resource.spec.cluster_ref
    return (reference.namespace or resource.metadata.namespace, reference.name)


def version_of(resource: Managed) -> Version:
    """Return which object and which spec this is: one that is made again has another uid."""
    return (resource.metadata.uid, resource.metadata.generation)


def age_of(resource: Managed) -> tuple[str, str, str]:
    """Order resources by age: if two describe the same thing, the older one wins."""
    metadata = resource.metadata
    return (metadata.creation_timestamp or "", metadata.namespace, metadata.name)


def is_paused(resource: Managed | None) -> bool:
    """Whether a workload was stopped for this group, and must be started: that needs no Cluster."""
    return isinstance(resource, ConsumerGroup) and resource.is_paused


def retained(resource: Managed) -> Managed:
    """Return a resource whose deletion deletes nothing from the brokers."""
    spec = msgspec.structs.replace(resource.spec, deletion_policy="Retain")
    return msgspec.structs.replace(resource, spec=spec)


@dataclass(frozen=True, kw_only=True)
class _Departed:
    """A deleted resource, when that was (monotonic), and the uid of the Cluster that it was in."""

    resource: Managed
    at: float
    cluster_uid: str


class Register:
    """All watched Topics and ConsumerGroups."""

    def __init__(self) -> None:
        """The register is empty before the first list."""
        self._resources: dict[Key, Managed] = {}
        self._by_cluster: dict[ClusterKey, set[Key]] = defaultdict(set)
        self._by_identity: dict[_Identity, set[Key]] = defaultdict(set)
        self._departed: dict[Key, _Departed] = {}

    def get(self, key: Key) -> Managed | None:
        """Return a resource, or None."""
        return self._resources.get(key)

    def upsert(self, resource: Managed) -> Managed | None:
        """Store a resource's present state; return its previous one."""
        previous = self.remove(resource.key)
        self._resources[resource.key] = resource
        self._by_cluster[cluster_key(resource)].add(resource.key)
        self._by_identity[_identity(resource)].add(resource.key)
        return previous

    def remove(self, key: Key) -> Managed | None:
        """Remove a resource; return its last state."""
        previous = self._resources.pop(key, None)
        if previous is not None:
            _discard(self._by_cluster, cluster_key(previous), key)
            _discard(self._by_identity, _identity(previous), key)
        return previous

    def of_cluster(self, cluster: ClusterKey) -> list[Managed]:
        """Return everything that refers to a Cluster, oldest first."""
        return sorted(
            (self._resources[key] for key in self._by_cluster.get(cluster, ())), key=age_of
        )

    def with_rivals(self, keys: set[Key]) -> list[Managed]:
        """Return these resources and all others that describe the same things, oldest first."""
        found: dict[Key, Managed] = {}
        for key in keys:
            resource = self._resources.get(key)
            if resource is not None:
                for rival in self._by_identity[_identity(resource)]:
                    found[rival] = self._resources[rival]
        return sorted(found.values(), key=age_of)

    def describing(self, resource: Managed) -> list[Managed]:
        """Return all that describe the same thing as this one (deleted or not), oldest first."""
        keys = self._by_identity.get(_identity(resource), ())
        return sorted((self._resources[key] for key in keys), key=age_of)

    def departed_as(self, key: Key) -> Managed | None:
        """Return the last state of a deleted resource with this key, if work is left."""
        found = self._departed.get(key)
        return found.resource if found is not None else None

    def depart(self, resource: Managed, cluster_uid: str) -> None:
        """Keep the last state of a deleted resource whose deletion leaves work to do.

        The work is only for this very Cluster, and not for a later one with the same name.
        """
        marked = resource.metadata.deletion_timestamp or _GONE
        metadata = msgspec.structs.replace(resource.metadata, deletion_timestamp=marked)
        self._departed[resource.key] = _Departed(
            resource=msgspec.structs.replace(resource, metadata=metadata),
            at=time.monotonic(),
            cluster_uid=cluster_uid,
        )

    def departed(self, cluster: ClusterKey, cluster_uid: str) -> list[Managed]:
        """Return deleted resources with work left that were not recreated."""
        return [
            each.resource if each.cluster_uid == cluster_uid else retained(each.resource)
            for key, each in self._departed.items()
            if key not in self._resources
            and cluster_key(each.resource) == cluster
            and (each.cluster_uid == cluster_uid or is_paused(each.resource))
        ]

    def settle(self, key: Key) -> None:
        """Remove a deleted resource: no work is left."""
        self._departed.pop(key, None)

    def settle_former(self, cluster: ClusterKey, cluster_uid: str) -> None:
        """Remove what was deleted in former Clusters with this name: their data went with them."""
        self._departed = {
            key: each
            for key, each in self._departed.items()
            if cluster_key(each.resource) != cluster
            or each.cluster_uid == cluster_uid
            or is_paused(each.resource)
        }

    def settle_old(self, age_seconds: float) -> None:
        """Remove what was deleted longer ago: the leader at that time has handled it."""
        oldest = time.monotonic() - age_seconds
        self._departed = {key: each for key, each in self._departed.items() if each.at >= oldest}

    def clusters(self) -> set[ClusterKey]:
        """Return every Cluster that a resource refers to."""
        return set(self._by_cluster)

    def groups_of(self, cluster: ClusterKey, choose: Callable[[ConsumerGroup], bool]) -> set[Key]:
        """Return the keys of a Cluster's groups that `choose` accepts."""
        found = set()
        for key in self._by_cluster.get(cluster, ()):
            resource = self._resources[key]
            if isinstance(resource, ConsumerGroup) and choose(resource):
                found.add(key)
        return found

    def iterate(self, kind: str) -> Iterator[Managed]:
        """Yield resources of a kind."""
        return (each for each in self._resources.values() if each.kind == kind)


def _discard(index: dict[_K, set[Key]], at: _K, key: Key) -> None:
    """Remove a key from an index, and its last entry with it: names come and go."""
    index[at].discard(key)
    if not index[at]:
        del index[at]


def _identity(resource: Managed) -> _Identity:
    name = resource.topic_name if isinstance(resource, Topic) else resource.group_id
    return (cluster_key(resource), resource.kind, name)
