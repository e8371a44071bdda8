"""Loads and saves the identities of a Cluster's brokers: a ConfigMap, and a copy on each claim.

The ConfigMap is deleted with its Cluster. Retained claims keep what a new Cluster with the same
name needs to reuse the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import structlog

from headrace_operator.kubernetes.brokers.former import remains_of_former
from headrace_operator.kubernetes.owners import check_owner
from headrace_operator.render.brokers import IDENTITY_KEY, render_identity
from headrace_operator.render.identity import Identity, Node
from headrace_operator.render.names import identity_name, labels, pod_name, selector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_operator.kubernetes.api.cache import Store
    from headrace_operator.kubernetes.api.client import KubernetesClient
    from headrace_operator.kubernetes.api.transport import Object
    from headrace_operator.resources import Cluster

__all__ = ["CLAIM_ANNOTATION", "Identities", "claim_mark", "claim_uids"]

CLAIM_ANNOTATION = "headrace.dev/broker"

_T = TypeVar("_T")
_log = structlog.get_logger("headrace.operator.brokers")


class _Claim(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a volume claim records: the broker whose data it has, and its cluster."""

    cluster: Identity
    node: Node


class IdentityLostError(Exception):
    """The identity was deleted while it was being written; the next pass finds what is left."""


class Identities:
    """The brokers' identities, by Cluster."""

    def __init__(self, client: KubernetesClient, store: Store) -> None:
        """All lasting state is in Kubernetes."""
        self._client = client
        self._store = store
        #: What was last read or written, by the Cluster's uid.
        self._last: dict[str, Identity] = {}

    async def load(self, cluster: Cluster) -> Identity | None:
        """Return the identity; None: there is none yet.

        If the ConfigMap is gone or unreadable, it is the one that this process read last, or else
        the one that retained claims remember. None as well while something of a former Cluster is
        being deleted. Raises KubernetesError.
        """
        uid = cluster.metadata.uid
        found = await self._config_map(cluster)
        if found is not None and _is_of(found, cluster):
            if (identity := _read(found)) is not None:
                self._last[uid] = identity
                return identity
            _log.warning("the identity cannot be read", cluster=cluster.key)
        return self._last.get(uid) or await self._recovered(cluster)

    async def remains(self, cluster: Cluster) -> list[str]:
        """Return what a Cluster without an identity waits for: see `remains_of_former`.

        Raises KubernetesError.
        """
        return remains_of_former(cluster, *await self._present(cluster))

    def forget(self, cluster: Cluster) -> None:
        """Forget a Cluster that is deleted."""
        self._last.pop(cluster.metadata.uid, None)

    async def is_kept(self, cluster: Cluster) -> bool:
        """Whether it is in a ConfigMap of this very Cluster, and not only on claims."""
        found = await self._config_map(cluster)
        return (
            found is not None
            and _is_of(found, cluster)
            and _read(found) is not None
            # Without these labels no watch delivers it.
            and (found["metadata"].get("labels") or {}).items() >= labels(cluster).items()
        )

    async def save(self, cluster: Cluster, identity: Identity) -> None:
        """Store it. Raises ForeignObjectError if a name is taken.

        Raises KubernetesError (Conflict) if another client wrote in the meantime.
        """
        rendered = render_identity(cluster, identity)
        found = await self._config_map(cluster)
        if found is not None:
            check_owner(found, rendered)
        if found is not None and not _is_of(found, cluster):
            # A former Cluster's ConfigMap: the garbage collector would delete it with its contents.
            await self._client.delete(found, uid=found["metadata"]["uid"])
            self._store.remove(found)
            found = None
        if found is None:
            written: Object | None = await self._client.create(rendered)
        else:
            version = found["metadata"]["resourceVersion"]
            metadata = {"resourceVersion": version, "labels": rendered["metadata"]["labels"]}
            patch = {"metadata": metadata, "data": rendered["data"]}
            written = await self._client.patch(rendered, patch)
        if written is None:
            raise IdentityLostError(f"{cluster.title}: its identity was deleted at this moment")
        self._store.learn(written)
        self._last[cluster.metadata.uid] = identity

    def claims_of(self, cluster: Cluster, node: Node) -> list[Object]:
        """Return the claims of a broker's pod."""
        suffix = f"-{pod_name(cluster, node)}"
        return [
            claim
            for claim in self._claims(cluster)
            if claim["metadata"]["name"].endswith(suffix)
            and claim["metadata"]["name"].removesuffix(suffix).startswith("data-")
        ]

    async def _config_map(self, cluster: Cluster) -> Object | None:
        namespace, name = cluster.metadata.namespace, identity_name(cluster)
        found = self._store.get("ConfigMap", namespace, name)
        # Its event may still be on the way, so a missing entry proves nothing: ask the API server.
        return found or await self._client.get("v1", "ConfigMap", namespace, name)

    def _claims(self, cluster: Cluster) -> list[Object]:
        namespace = cluster.metadata.namespace
        return self._store.list("PersistentVolumeClaim", namespace, selector(cluster))

    async def _present(self, cluster: Cluster) -> tuple[list[Object], list[Object]]:
        """Return the sets and claims with the Cluster's labels, as they are now.

        The store may not know yet that they are being deleted: the Cluster's own event may come
        before theirs.
        """
        namespace = cluster.metadata.namespace
        labels_text = ",".join(f"{key}={value}" for key, value in selector(cluster).items())
        sets = await self._client.list("apps/v1", "StatefulSet", namespace, labels_text)
        claims = await self._client.list("v1", "PersistentVolumeClaim", namespace, labels_text)
        return sets, claims

    async def _recovered(self, cluster: Cluster) -> Identity | None:
        sets, claims = await self._present(cluster)
        if remains_of_former(cluster, sets, claims):
            return None
        marked = [
            remembered
            for claim in claims
            if not claim["metadata"].get("deletionTimestamp")
            and (text := (claim["metadata"].get("annotations") or {}).get(CLAIM_ANNOTATION))
            and (remembered := _decoded(text, _Claim)) is not None
        ]
        if not marked:
            return None
        # Not all may have been marked when the last operator ended: what is later counts.
        marked.sort(key=lambda each: (each.cluster.is_formed, each.node.life))
        nodes = {each.node.node_id: each.node for each in marked}
        return msgspec.structs.replace(
            marked[-1].cluster,
            nodes=tuple(nodes[node_id] for node_id in sorted(nodes)),
            lives={str(node_id): node.life for node_id, node in nodes.items()},
        )


def claim_mark(identity: Identity, node: Node) -> str:
    """Return what a claim is marked with: the broker whose data it has, and its cluster."""
    copy = msgspec.structs.replace(
        identity,
        nodes=(),
        lives={},
        disks={},
        voters=(),
        good=None,
        failed=None,
        # A later Cluster's brokers are described by its own spec.
        described={},
        levels={},
        supported={},
    )
    return msgspec.json.encode(_Claim(cluster=copy, node=node)).decode()


def claim_uids(claims: Sequence[Object]) -> tuple[str, ...]:
    """Return the uids of the claims, without those that are being deleted."""
    kept = [each["metadata"] for each in claims if not each["metadata"].get("deletionTimestamp")]
    return tuple(sorted(str(each["uid"]) for each in kept))


def _read(config_map: Object) -> Identity | None:
    """Return the identity in a ConfigMap; None if somebody has overwritten it."""
    return _decoded((config_map.get("data") or {}).get(IDENTITY_KEY, ""), Identity)


def _decoded(text: str, wanted: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(text, type=wanted)
    except msgspec.MsgspecError:
        return None


def _is_of(obj: Object, cluster: Cluster) -> bool:
    """Whether it belongs to this Cluster, and not to a former one with the same name."""
    owners: list[dict[str, Any]] = obj["metadata"].get("ownerReferences", [])
    return any(owner["uid"] == cluster.metadata.uid for owner in owners)
