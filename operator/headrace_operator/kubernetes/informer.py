"""Feeds the store and the register, and turns changes into keys of the queue.

Owns the mapping from objects to keys. It also lists the watched kinds periodically: kopf reports no
deletions that happened while its watch was broken, and a watch that died silently looks like a
quiet cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headrace_operator.kubernetes.api.cache import CLUSTER_LABEL, trim
from headrace_operator.kubernetes.api.lease import LEASE_SECONDS
from headrace_operator.kubernetes.api.watches import selector_of
from headrace_operator.kubernetes.register import cluster_key, is_paused, parse_managed, retained
from headrace_operator.kubernetes.unreadable import Unreadable, why_unreadable
from headrace_operator.render.names import fitted
from headrace_operator.resources import Cluster, ConsumerGroup, parse_resource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace_operator.kubernetes.api.cache import Store
    from headrace_operator.kubernetes.api.client import KubernetesClient
    from headrace_operator.kubernetes.api.transport import Object
    from headrace_operator.kubernetes.api.watches import Watched
    from headrace_operator.kubernetes.queue import QueueKey, WorkQueue
    from headrace_operator.kubernetes.reconcile import ClusterReconciler
    from headrace_operator.kubernetes.register import ClusterKey, Managed, Register

__all__ = ["Informer", "find_cluster", "list_watched"]

#: How long changes of pods are collected: a restart is many changes, and a pass is expensive.
PODS_SECONDS = 0.1
SPARK_APP_LABEL = "sparkoperator.k8s.io/app-name"


class Informer:
    """What was seen, and which keys are due."""

    def __init__(
        self, store: Store, register: Register, queue: WorkQueue, reconciler: ClusterReconciler
    ) -> None:
        """Nothing has been seen yet."""
        self._store = store
        self._register = register
        self._queue = queue
        self._reconciler = reconciler
        self._unreadable = Unreadable()

    def see(self, obj: Object, *, is_gone: bool) -> None:
        """Apply an event. A state older than the known one is ignored."""
        kind = obj["kind"]
        trim(obj)
        if kind in ("Topic", "ConsumerGroup"):
            if self._unreadable.see(obj, is_gone=is_gone):
                metadata = obj["metadata"]
                self._queue.add((kind, metadata["namespace"], metadata["name"]))
            self._see_managed(obj, is_gone=is_gone)
            return
        metadata = obj["metadata"]
        known = self._store.get(kind, metadata.get("namespace", ""), metadata["name"])
        if known is not None and not _is_newer(obj, known, is_gone=is_gone):
            return
        if is_gone:
            self._store.remove(obj)
        else:
            self._store.upsert(obj)
        if kind == "Cluster":
            if is_gone or known is None or _intent(known) != _intent(obj):
                self._mark((metadata["namespace"], metadata["name"]))
        else:
            self._see_owned(obj, known)

    def versions(self, kind: str) -> dict[tuple[str, str], tuple[str, int]]:
        """Return uid and resourceVersion of all seen objects of a kind."""
        if kind in ("Topic", "ConsumerGroup"):
            seen = (each.metadata for each in self._register.iterate(kind))
            return {
                (each.namespace, each.name): (each.uid, int(each.resource_version)) for each in seen
            }
        return {
            (each.get("namespace", ""), each["name"]): (each["uid"], int(each["resourceVersion"]))
            for each in (obj["metadata"] for obj in self._store.iterate(kind))
        }

    def take_for_gone(self, kind: str, name: tuple[str, str]) -> None:
        """Remove an object whose deletion no watch delivered. Its last state is unknown.

        So nothing that it described is deleted from the brokers: its policy may have changed.
        """
        self._unreadable.forget((kind, *name))
        if kind not in ("Topic", "ConsumerGroup"):
            if (known := self._store.get(kind, *name)) is not None:
                self.see(known, is_gone=True)
        elif (resource := self._register.get((kind, *name))) is not None:
            if is_paused(resource):
                self._register.depart(retained(resource), self._uid_of(cluster_key(resource)))
            self._forget(resource)

    def find_unreadable(self, key: QueueKey) -> Object | None:
        """Return a resource that is there and that this version cannot read."""
        if key[0] != "Cluster":
            return self._unreadable.get(key)
        document = self._store.get(*key)
        return document if document is not None and why_unreadable(document) else None

    def mark_all(self) -> None:
        """Mark every Cluster as due, also those that are only referred to."""
        self._register.settle_old(LEASE_SECONDS)
        clusters = {
            (each["metadata"]["namespace"], each["metadata"]["name"])
            for each in self._store.iterate("Cluster")
        }
        for key in clusters | self._register.clusters():
            self._mark(key)
        for resource in self._unreadable.resources():
            self._queue.add(resource)
        for application in self._store.list("SparkApplication"):
            metadata = application["metadata"]
            self._queue.add(("SparkApplication", metadata["namespace"], metadata["name"]))

    def _see_managed(self, obj: Object, *, is_gone: bool) -> None:
        resource = parse_managed(obj)
        if resource is None:
            return
        known = self._register.get(resource.key)
        if known is not None and not _is_newer_version(
            resource.metadata.resource_version, known.metadata.resource_version, is_gone=is_gone
        ):
            return
        if is_gone:
            cluster_uid = self._uid_of(cluster_key(resource))
            # Without its Cluster there is nothing to clean up.
            is_kept = resource.spec.deletion_policy == "Delete" and cluster_uid
            if is_kept or is_paused(resource):
                self._register.depart(resource, cluster_uid)
            self._forget(resource)
        else:
            self._register.upsert(self._with_former_pause(resource))
            if known is None or _intent_of(known) != _intent_of(resource):
                self._mark_managed(resource)

    def _with_former_pause(self, resource: Managed) -> Managed:
        """Let a group that was made again know which workload was stopped for its namesake."""
        key = resource.key
        former = self._register.get(key) or self._register.departed_as(key)
        if (
            not isinstance(resource, ConsumerGroup)
            or not isinstance(former, ConsumerGroup)
            or former.metadata.uid == resource.metadata.uid
            or not former.is_paused
            or resource.is_paused
        ):
            return resource
        status = msgspec.structs.replace(
            resource.status,
            paused_replicas=former.status.paused_replicas,
            paused_target=former.present_target,
        )
        return msgspec.structs.replace(resource, status=status)

    def _uid_of(self, cluster: ClusterKey) -> str:
        """Return the uid of the Cluster; '' if there is none."""
        found = self._store.get("Cluster", *cluster)
        return str(found["metadata"]["uid"]) if found is not None else ""

    def _forget(self, resource: Managed) -> None:
        rivals = self._register.with_rivals({resource.key})
        self._register.remove(resource.key)
        for rival in rivals:
            self._mark_managed(rival)
        self._mark_managed(resource)

    def _see_owned(self, obj: Object, known: Object | None) -> None:
        metadata = obj["metadata"]
        labels = metadata.get("labels") or {}
        application = labels.get(SPARK_APP_LABEL)
        if obj["kind"] == "SparkApplication":
            self._queue.add(("SparkApplication", metadata["namespace"], metadata["name"]))
        elif application is not None:
            self._queue.add(("SparkApplication", metadata["namespace"], application))
        elif (label := labels.get(CLUSTER_LABEL)) is not None:
            cluster = self._named(metadata["namespace"], label)
            self._reconciler.mark((metadata["namespace"], cluster), health=True)
            self._queue.add_after(("Cluster", metadata["namespace"], cluster), PODS_SECONDS)
        else:
            # What several applications share has the label of none; one may have been taken off it.
            for name in _applications_of(obj) | _applications_of(known or {}):
                self._queue.add(("SparkApplication", metadata["namespace"], name))

    def _named(self, namespace: str, label: str) -> str:
        """Return the name of the Cluster whose objects have this label: it may be longer."""
        if self._store.get("Cluster", namespace, label) is not None:
            return label
        metadata = (each["metadata"] for each in self._store.iterate("Cluster"))
        names = (each["name"] for each in metadata if each["namespace"] == namespace)
        return next((name for name in names if fitted(name) == label), label)

    def _mark(self, key: ClusterKey) -> None:
        self._reconciler.mark(key)
        self._queue.add(("Cluster", *key))

    def _mark_managed(self, resource: Managed) -> None:
        key = cluster_key(resource)
        self._reconciler.mark(key, resource.key)
        self._queue.add(("Cluster", *key))


async def list_watched(
    client: KubernetesClient, kinds: Sequence[Watched], namespaces: Sequence[str]
) -> list[Object]:
    """List all watched objects."""
    found: list[Object] = []
    for api_version, kind in kinds:
        selector = selector_of((api_version, kind))
        for namespace in namespaces or (None,):
            found += await client.list(api_version, kind, namespace, selector)
    return found


def find_cluster(store: Store, key: ClusterKey) -> Cluster | None:
    """Return a Cluster's present state; None: there is none that this version can read."""
    document = store.get("Cluster", *key)
    if document is None:
        return None
    try:
        resource = parse_resource(document)
    except (msgspec.ValidationError, KeyError):
        return None
    return resource if isinstance(resource, Cluster) else None


def _applications_of(obj: Mapping[str, Any]) -> set[str]:
    owners = obj.get("metadata", {}).get("ownerReferences") or []
    return {str(each["name"]) for each in owners if each["kind"] == "SparkApplication"}


def _intent(obj: Mapping[str, Any]) -> tuple[Any, ...]:
    """What matters in a change: everything but the status, which the operator writes itself."""
    metadata = obj["metadata"]
    return (
        metadata.get("uid"),
        metadata.get("generation"),
        metadata.get("deletionTimestamp"),
        metadata.get("finalizers"),
        metadata.get("labels"),
        metadata.get("annotations"),
    )


def _intent_of(resource: Managed) -> tuple[Any, ...]:
    metadata = resource.metadata
    return (
        metadata.uid,
        metadata.generation,
        metadata.deletion_timestamp,
        metadata.finalizers,
        metadata.labels,
        metadata.annotations,
    )


def _is_newer(obj: Mapping[str, Any], known: Mapping[str, Any], *, is_gone: bool) -> bool:
    return _is_newer_version(
        obj["metadata"].get("resourceVersion", "0"),
        known["metadata"].get("resourceVersion", "0"),
        is_gone=is_gone,
    )


def _is_newer_version(version: str, known: str, *, is_gone: bool) -> bool:
    """Compare versions as numbers, which they are (KEP-5504 finally says so)."""
    if is_gone:
        return int(version) >= int(known)
    return int(version) > int(known)
