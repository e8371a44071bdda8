"""Topics and ConsumerGroups, typed, and found by their Cluster and by their name in the brokers.

Owns these objects and two indexes. It keeps them typed and without the fields that only the API
server needs: thousands of them fit in a few megabytes.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from headrace_operator.resources import ConsumerGroup, Topic, parse_resource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace_operator.kubernetes.api.transport import Object
    from headrace_operator.plan import Key

__all__ = ["ClusterKey", "Managed", "Register", "age_of", "cluster_key", "parse_managed"]

Managed: TypeAlias = Topic | ConsumerGroup
#: Namespace and name of a Cluster, whether it exists or not.
ClusterKey: TypeAlias = tuple[str, str]
#: Cluster, kind, and the topic's name or the group's id.
_Identity: TypeAlias = tuple[ClusterKey, str, str]
#: A deletionTimestamp where none was seen; only that there is one counts.
_GONE = "1970-01-01T00:00:00Z"


def parse_managed(obj: Object) -> Managed | None:
    """Return the typed resource; None for one that the CRD would not accept (an older version)."""
    try:
        resource = parse_resource(obj)
    except (msgspec.ValidationError, KeyError):
        return None
    if not isinstance(resource, Topic | ConsumerGroup):
        return None
    return msgspec.structs.replace(resource, document={})


def cluster_key(resource: Managed) -> ClusterKey:
    """Name the Cluster that a resource refers to."""
    reference = resource.spec.cluster_ref
    return (reference.namespace or resource.metadata.namespace, reference.name)


def age_of(resource: Managed) -> tuple[str, str, str]:
    """Order resources by age: of two for one thing the older wins, whoever looks."""
    metadata = resource.metadata
    return (metadata.creation_timestamp or "", metadata.namespace, metadata.name)


class Register:
    """All Topics and ConsumerGroups that are watched."""

    def __init__(self) -> None:
        """Nothing is known before the first list."""
        self._resources: dict[Key, Managed] = {}
        self._by_cluster: dict[ClusterKey, set[Key]] = defaultdict(set)
        self._by_identity: dict[_Identity, set[Key]] = defaultdict(set)
        self._departed: dict[Key, tuple[float, Managed]] = {}

    def get(self, key: Key) -> Managed | None:
        """Return a resource, or None."""
        return self._resources.get(key)

    def upsert(self, resource: Managed) -> Managed | None:
        """Keep a resource as it is now; return what was kept before."""
        previous = self.remove(resource.key)
        self._resources[resource.key] = resource
        self._by_cluster[cluster_key(resource)].add(resource.key)
        self._by_identity[_identity(resource)].add(resource.key)
        return previous

    def remove(self, key: Key) -> Managed | None:
        """Forget a resource; return what was kept."""
        previous = self._resources.pop(key, None)
        if previous is not None:
            self._by_cluster[cluster_key(previous)].discard(key)
            self._by_identity[_identity(previous)].discard(key)
        return previous

    def of_cluster(self, cluster: ClusterKey) -> list[Managed]:
        """Return everything that refers to a Cluster, oldest first."""
        return sorted((self._resources[key] for key in self._by_cluster[cluster]), key=age_of)

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
        """Return all that describe the same thing as this one, which may be gone; oldest first."""
        keys = self._by_identity[_identity(resource)]
        return sorted((self._resources[key] for key in keys), key=age_of)

    def depart(self, resource: Managed) -> None:
        """Keep the last state of a resource that is gone and whose deletion leaves work to do."""
        marked = resource.metadata.deletion_timestamp or _GONE
        metadata = msgspec.structs.replace(resource.metadata, deletion_timestamp=marked)
        gone = msgspec.structs.replace(resource, metadata=metadata)
        self._departed[resource.key] = (time.monotonic(), gone)

    def departed(self, cluster: ClusterKey) -> list[Managed]:
        """Return what is gone, has work left, and was not made again."""
        return [
            resource
            for key, (_, resource) in self._departed.items()
            if key not in self._resources and cluster_key(resource) == cluster
        ]

    def settle(self, key: Key) -> None:
        """Forget what is gone: nothing is left to do for it."""
        self._departed.pop(key, None)

    def settle_old(self, age_seconds: float) -> None:
        """Forget what has been gone for longer: whoever led then has dealt with it."""
        oldest = time.monotonic() - age_seconds
        self._departed = {key: each for key, each in self._departed.items() if each[0] >= oldest}

    def clusters(self) -> set[ClusterKey]:
        """Return every Cluster that something refers to."""
        return {key for key, resources in self._by_cluster.items() if resources}

    def groups_of(self, cluster: ClusterKey, choose: Callable[[ConsumerGroup], bool]) -> set[Key]:
        """Return the keys of a Cluster's groups that are chosen."""
        found = set()
        for key in self._by_cluster[cluster]:
            resource = self._resources[key]
            if isinstance(resource, ConsumerGroup) and choose(resource):
                found.add(key)
        return found

    def iterate(self, kind: str) -> Iterator[Managed]:
        """Yield resources of a kind."""
        return (each for each in self._resources.values() if each.kind == kind)


def _identity(resource: Managed) -> _Identity:
    name = resource.topic_name if isinstance(resource, Topic) else resource.group_id
    return (cluster_key(resource), resource.kind, name)
