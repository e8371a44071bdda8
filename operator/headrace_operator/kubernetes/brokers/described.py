"""What brokers were last described by, recorded with their identities before it is rendered. Pure.

While a spec waits for approval, or could not be served, brokers' objects are kept by this record
and not by the spec. A pool that the spec no longer has is kept by it until its last broker left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headrace_operator.kubernetes.brokers.addresses import missing_addresses, with_addresses
from headrace_operator.plan.brokers import target_of
from headrace_operator.render.identity import as_read
from headrace_operator.render.properties import static_config
from headrace_operator.render.services import external_listeners
from headrace_operator.resources.cluster import Listener, LocalObjectReference, Pool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_operator.kubernetes.api.transport import Object
    from headrace_operator.render.identity import Identity
    from headrace_operator.resources import Cluster

__all__ = ["as_described", "former_pools", "with_described_listeners", "with_description"]


def with_description(cluster: Cluster, identity: Identity) -> Identity:
    """Return the identity with what the Cluster's pods are rendered from, former pools included."""
    spec = cluster.spec
    pools = [*spec.pools, *former_pools(cluster, identity)]
    described: dict[str, Any] = {
        "config": static_config(cluster),
        "listeners": spec.listeners,
        "imagePullSecrets": spec.image_pull_secrets,
        "pools": pools,
    }
    return msgspec.structs.replace(identity, described=as_read(described))


def as_described(cluster: Cluster, identity: Identity | None) -> Cluster | None:
    """Return the Cluster as its brokers were last described; None: that is not known.

    Image and version are the identity's own.
    """
    if identity is None or not identity.described:
        return None
    described = identity.described
    try:
        spec = msgspec.structs.replace(
            cluster.spec,
            config=msgspec.convert(described["config"], dict[str, str]),
            listeners=msgspec.convert(described["listeners"], tuple[Listener, ...]),
            image_pull_secrets=msgspec.convert(
                described["imagePullSecrets"], tuple[LocalObjectReference, ...]
            ),
            pools=_pools(identity),
        )
    except (msgspec.ValidationError, KeyError):
        # By another version, or by somebody else.
        return None
    return msgspec.structs.replace(cluster, spec=spec)


def with_described_listeners(
    cluster: Cluster, identity: Identity, services: Mapping[str, Object]
) -> Cluster:
    """Return the Cluster with its former listeners while a new one lacks an address.

    Everything else of the spec is carried out meanwhile. Load balancers may take a while, or for
    ever. The Cluster must not be held back: what this returns counts as approved.
    """
    if not identity.is_formed or not identity.described:
        return cluster
    try:
        former = msgspec.convert(identity.described["listeners"], tuple[Listener, ...])
    except (msgspec.ValidationError, KeyError):
        return cluster
    known = {(each.name, each.type) for each in former}
    new = {each.name for each in external_listeners(cluster) if (each.name, each.type) not in known}
    nodes = (with_addresses(cluster, each, services) for each in identity.nodes)
    if not any(new.intersection(missing_addresses(cluster, each)) for each in nodes):
        return cluster
    found = msgspec.structs.replace(
        cluster, spec=msgspec.structs.replace(cluster.spec, listeners=former)
    )
    if cluster.spec.update_policy != "Plan":
        return found
    spec = msgspec.structs.replace(found.spec, approved_plan=target_of(found))
    return msgspec.structs.replace(found, spec=spec)


def former_pools(cluster: Cluster, identity: Identity) -> tuple[Pool, ...]:
    """Return the pools that the spec no longer has and that still have brokers, as described."""
    present = {pool.name for pool in cluster.spec.pools}
    try:
        return tuple(
            pool
            for pool in _pools(identity)
            if pool.name not in present and identity.pool(pool.name)
        )
    except (msgspec.ValidationError, KeyError):
        return ()


def _pools(identity: Identity) -> tuple[Pool, ...]:
    return msgspec.convert(identity.described.get("pools", ()), tuple[Pool, ...])
