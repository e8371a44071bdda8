"""Volume claims: each says which broker's data it has, and goes with what it should.

With `deletionPolicy: Delete` a claim has its Cluster as an owner, so that the garbage collector
deletes it with the Cluster, without an operator too. No StatefulSet owns a claim: one that is
deleted is made again, and data is not. Anybody may scale a set, so it may delete claims only while
it has pods of brokers that the operator has removed. The Cluster does not control claims: a
StatefulSet's controller leaves alone what another controls, also when its pod leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_operator.kubernetes.brokers.identity import CLAIM_ANNOTATION, claim_mark
from headrace_operator.kubernetes.brokers.observed import is_owned
from headrace_operator.kubernetes.owners import owners_of_kind
from headrace_operator.render.names import INSTANCE_LABEL, metadata, selector, stateful_set
from headrace_operator.render.pods import STORAGE_DELETION_ANNOTATION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace_operator.kubernetes.api.transport import Object
    from headrace_operator.kubernetes.brokers.keeper import Refusals
    from headrace_operator.kubernetes.brokers.tools import Tools
    from headrace_operator.render.identity import Identity, Node
    from headrace_operator.resources import Cluster

__all__ = ["is_shrinking", "keep_claims", "release_claims", "retention_of_former"]


async def keep_claims(
    cluster: Cluster, identity: Identity, tools: Tools, refusals: Refusals
) -> None:
    """Mark the brokers' claims, and let all claims go with the Cluster or outlive it.

    A claim of a removed broker gets no owner that it does not have: it may be about to go with its
    pod, and one more owner would keep it.
    """
    marks = {
        claim["metadata"]["name"]: claim_mark(identity, node)
        for node in identity.nodes
        for claim in tools.identities.claims_of(cluster, node)
    }
    namespace, labels = cluster.metadata.namespace, selector(cluster)
    sets = {
        each["metadata"]["uid"]: each
        for each in tools.store.list("StatefulSet", namespace, labels)
        if is_owned(each, cluster.metadata.uid)
    }
    for claim in tools.store.list("PersistentVolumeClaim", namespace, labels):
        changes = _changes(cluster, claim, marks.get(claim["metadata"]["name"]), sets)
        if changes and not claim["metadata"].get("deletionTimestamp"):
            with refusals.recorded(claim):
                await _patch(tools, claim, changes)


async def release_claims(cluster: Cluster, node: Node, tools: Tools, refusals: Refusals) -> bool:
    """Take a broker's claims, which it does not need any more, from it, before its pod goes.

    Where they are to go with the pod, also from the Cluster: another owner would keep them. Returns
    whether that was done.
    """
    before = len(refusals.failures)
    changes: Object = {"annotations": {CLAIM_ANNOTATION: None}}
    if _go_with_pod(cluster, node, tools):
        # Whether or not it was seen that they have it.
        changes["ownerReferences"] = [_without(cluster.metadata.uid)]
    for claim in tools.identities.claims_of(cluster, node):
        with refusals.recorded(claim):
            await _patch(tools, claim, changes)
    return len(refusals.failures) == before


def is_shrinking(live: Object | None, pods: Iterable[Object], replicas: int) -> bool:
    """Whether a set has pods beyond these replicas, or will not be without them for long. Pure."""
    if live is None:
        return False
    has = max(live["spec"].get("replicas", 1), live.get("status", {}).get("replicas", 0))
    mine = (each["metadata"]["name"] for each in pods if is_owned(each, live["metadata"]["uid"]))
    ordinals = (int(name.rpartition("-")[2]) for name in mine)
    return bool(max([has, *(each + 1 for each in ordinals)]) > replicas)


def retention_of_former(live: Object, pods: Iterable[Object], replicas: int) -> Object:
    """Return what the set of a removed pool does with claims, as a part of its spec. Pure."""
    if not _retention(live):
        return {}
    goes = is_shrinking(live, pods, replicas) and _deletes_storage(live)
    when_scaled = {"whenScaled": "Delete" if goes else "Retain"}
    return {"persistentVolumeClaimRetentionPolicy": {**_retention(live), **when_scaled}}


def _changes(
    cluster: Cluster, claim: Object, mark: str | None, sets: Mapping[str, Object]
) -> Object:
    """Return what is to change in a claim's metadata. `mark` None: it is no broker's any more."""
    has = claim["metadata"]
    changes: Object = {}
    if mark is not None and (has.get("annotations") or {}).get(CLAIM_ANNOTATION) != mark:
        changes["annotations"] = {CLAIM_ANNOTATION: mark}
    # Claims of former sets have it: see `claim_labels`.
    if mark is not None and INSTANCE_LABEL in (has.get("labels") or {}):
        changes["labels"] = {INSTANCE_LABEL: None}
    goes = cluster.spec.deletion_policy == "Delete"
    is_ours = is_owned(claim, cluster.metadata.uid)
    # Sets of an older operator, and what they owned.
    former = [each["uid"] for each in owners_of_kind(claim, "apps/v1", "StatefulSet")]
    former = [uid for uid in former if uid in sets]
    owners: list[Object] = [_without(uid) for uid in former if not _takes_claims(sets[uid])]
    if goes and not is_ours and (mark is not None or former):
        owners.append(_owner(cluster))
    elif is_ours and not goes:
        owners.append(_without(cluster.metadata.uid))
    return changes | ({"ownerReferences": owners} if owners else {})


def _go_with_pod(cluster: Cluster, node: Node, tools: Tools) -> bool:
    """Whether the set deletes the claims of a broker that leaves."""
    for pool in cluster.spec.pools:
        if pool.name == node.pool:
            return pool.storage.deletion_policy == "Delete"
    # Its pool is removed.
    namespace, name = cluster.metadata.namespace, stateful_set(cluster, node.pool)
    live = tools.store.get("StatefulSet", namespace, name)
    return live is not None and _deletes_storage(live)


def _deletes_storage(live: Object) -> bool:
    """Whether a removed broker's claims were to go when the set's pool was last described."""
    annotations = live["metadata"].get("annotations") or {}
    is_asked = annotations.get(STORAGE_DELETION_ANNOTATION) == "Delete"
    # An older operator wrote it down nowhere else.
    return bool(is_asked or _retention(live).get("whenScaled") == "Delete")


def _takes_claims(live: Object) -> bool:
    """Whether the set's controller makes it an owner of claims."""
    return _retention(live).get("whenDeleted") == "Delete"


def _retention(live: Object) -> Mapping[str, str]:
    return live["spec"].get("persistentVolumeClaimRetentionPolicy") or {}


def _owner(cluster: Cluster) -> Object:
    (owner,) = metadata(cluster, "")["ownerReferences"]
    return {**owner, "controller": False}


def _without(uid: str) -> Object:
    """Return the entry of a strategic merge patch that removes an owner: others stay."""
    return {"$patch": "delete", "uid": uid}


async def _patch(tools: Tools, claim: Object, changes: Mapping[str, Any]) -> None:
    has = claim["metadata"]
    reference = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": has}
    # Of this very claim, and of none that was made in its place.
    patch = {"metadata": {**changes, "uid": has["uid"]}}
    written = await tools.client.patch(reference, patch, patch_type="strategic")
    if written is not None:
        tools.store.learn(written)
