"""The last working and the failed specs of brokers: a failed change is rolled back. Pure.

When all brokers serve with the spec, the origin of their pods is recorded with their identities. If
a broker then cannot start from another spec, that spec is recorded as failed, and until it changes,
brokers are rendered as before. A pod that finds no node, no volume or no room in a quota is not
blamed on a change that affects none of them.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from headrace_operator.plan.rolling import config_changes
from headrace_operator.render.identity import Failed, Good, Identity, as_read
from headrace_operator.render.pods import pool_inputs
from headrace_operator.render.properties import static_config
from headrace_operator.resources.broker_settings import LIVE_BROKER_SETTINGS
from headrace_operator.resources.cluster import Listener, LocalObjectReference, Pool

if TYPE_CHECKING:
    from headrace_operator.plan import ObservedBroker, ObservedCluster
    from headrace_operator.resources import Cluster

__all__ = ["as_it_ran", "noted", "with_listeners_kept"]

#: Fields of a pool that affect scheduling, and are rolled back with the rest.
_PLACES = ("resources", "podTemplate", "racks")
#: Reasons that only a change of these fields can be blamed for: nodes, volumes and quotas have
#: their own misfortunes.
_PLACE_REASONS = ("Unschedulable", "SchedulingGated", "FailedMount", "FailedAttachVolume")
_QUOTA = "exceeded quota"


def as_it_ran(cluster: Cluster, identity: Identity, default_image: str) -> tuple[Cluster, str]:
    """Return the Cluster as its brokers last ran, and why, if its spec is known to have failed.

    Else the Cluster itself and ''. Dynamic settings keep their wanted values, and so do the numbers
    of brokers and their volumes.
    """
    failed, good, spec = identity.failed, identity.good, cluster.spec
    wanted = identity.at_version(spec.version, spec.image, default_image)
    if failed is None or good is None or failed.key != _key(cluster, wanted):
        return cluster, ""
    if good == _good(cluster, wanted):
        # An older operator blamed a spec that had not changed.
        return cluster, ""
    live = {key: value for key, value in spec.config.items() if key in LIVE_BROKER_SETTINGS}
    formerly: dict[str, Any] = good.spec
    pools = []
    for pool in spec.pools:
        places = formerly["pools"].get(pool.name, {})
        pools.append(msgspec.convert(msgspec.to_builtins(pool) | places, Pool))
    spec = msgspec.structs.replace(
        spec,
        pools=tuple(pools),
        config=formerly["config"] | live,
        listeners=msgspec.convert(formerly["listeners"], tuple[Listener, ...]),
        image=good.image if good.is_image_named else None,
        image_pull_secrets=msgspec.convert(
            formerly["imagePullSecrets"], tuple[LocalObjectReference, ...]
        ),
        version=good.version,
        # The rollback needs no approval: that was for the failed change.
        update_policy="Auto",
    )
    return msgspec.structs.replace(cluster, spec=spec), failed.reason


def with_listeners_kept(cluster: Cluster, identity: Identity | None) -> Cluster:
    """Return the Cluster with the listeners that its brokers last served with, if that is known."""
    if identity is None or identity.good is None:
        return cluster
    listeners = msgspec.convert(identity.good.spec["listeners"], tuple[Listener, ...])
    spec = msgspec.structs.replace(cluster.spec, listeners=listeners)
    return msgspec.structs.replace(cluster, spec=spec)


def noted(cluster: Cluster, before: Identity, wanted: Identity, seen: ObservedCluster) -> Identity:
    """Return `wanted`, which follows the spec, with what this observation shows about it.

    `before` is the stored identity, with the image to roll back to.
    """
    good = _good(cluster, wanted)
    if _serves_as_described(cluster, seen):
        return msgspec.structs.replace(wanted, good=good, failed=None)
    former = before.good
    if former is None or former == good:
        return wanted
    changes = _changes(former, good)
    broker = _broken_by(changes, cluster, seen)
    if broker is None:
        return wanted
    reason = (
        f"broker {broker.node_id} did not come up with what the spec says now"
        f" ({'; '.join(changes)}): {broker.failing}. Brokers run as before: correct the spec, or"
        " put it back"
    )
    return msgspec.structs.replace(
        wanted,
        image=former.image,
        version=former.version,
        is_image_named=former.is_image_named,
        good=former,
        failed=Failed(key=_key(cluster, wanted), reason=reason),
    )


def _good(cluster: Cluster, identity: Identity) -> Good:
    spec = cluster.spec
    return Good(
        image=identity.image,
        version=identity.version,
        is_image_named=identity.is_image_named,
        spec=as_read(
            {
                "config": static_config(cluster),
                "listeners": spec.listeners,
                "imagePullSecrets": spec.image_pull_secrets,
                "pools": {
                    pool.name: {
                        "resources": pool.resources,
                        "podTemplate": pool.pod_template,
                        "racks": pool.racks,
                    }
                    for pool in spec.pools
                },
            }
        ),
    )


def _key(cluster: Cluster, identity: Identity) -> str:
    """Return a key of the pods' origin, for all pools."""
    inputs = [
        (pool.name, sorted(pool_inputs(cluster, identity, pool).items()))
        for pool in cluster.spec.pools
    ]
    described = msgspec.json.encode([sorted(static_config(cluster).items()), inputs])
    return hashlib.sha256(described).hexdigest()[:16]


def _serves_as_described(cluster: Cluster, seen: ObservedCluster) -> bool:
    config = static_config(cluster)
    wanted = sum(pool.replicas for pool in cluster.spec.pools)
    return (
        seen.is_reachable
        and len(seen.brokers) >= max(1, wanted)
        and all(
            broker.is_registered
            and broker.is_ready
            and not broker.outdated
            and dict(broker.config) == config
            for broker in seen.brokers
        )
    )


def _changes(former: Good, wanted: Good) -> list[str]:
    changes = list(config_changes(former.spec["config"], wanted.spec["config"]))
    if former.image != wanted.image:
        changes.append(f"image: {former.image} -> {wanted.image}")
    changes += [
        part for part in ("listeners", "imagePullSecrets") if former.spec[part] != wanted.spec[part]
    ]
    for name, places in wanted.spec["pools"].items():
        known = former.spec["pools"].get(name, places)
        changes += [f"{name}: {part}" for part in _PLACES if known.get(part) != places.get(part)]
    return changes


def _broken_by(
    changes: list[str], cluster: Cluster, seen: ObservedCluster
) -> ObservedBroker | None:
    """Return a broker that was made from the changes and has failed to start since."""
    config = static_config(cluster)
    placed = {each.partition(": ")[0] for each in changes if each.endswith(_PLACES)}
    for broker in seen.brokers:
        if not broker.is_stuck or broker.outdated or dict(broker.config) != config:
            continue
        is_about_place = broker.failing.startswith(_PLACE_REASONS) or _QUOTA in broker.failing
        if is_about_place and broker.pool not in placed:
            continue
        if changes:
            return broker
    return None
