"""What brokers ran well with, and what they did not come up with: a bad change is taken back. Pure.

When all brokers serve as the spec says, what their pods are made from is written down beside who
they are. When one then cannot start from another description, that one is noted as failed, and
until the spec changes brokers are described as before. That a pod finds no node is not blamed on a
change that has nothing to do with places.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from headrace_operator.plan.rolling import config_changes
from headrace_operator.render.identity import Failed, Good, Identity
from headrace_operator.render.pods import pool_inputs
from headrace_operator.render.properties import static_config
from headrace_operator.resources.broker_settings import LIVE_BROKER_SETTINGS
from headrace_operator.resources.cluster import Listener, LocalObjectReference, Pool

if TYPE_CHECKING:
    from headrace_operator.plan import ObservedBroker, ObservedCluster
    from headrace_operator.resources import Cluster

__all__ = ["as_it_ran", "noted"]

#: What of a pool decides where its pods may run, and is taken back with the rest.
_PLACES = ("resources", "podTemplate", "racks")
_UNSCHEDULABLE = "Unschedulable"


def as_it_ran(cluster: Cluster, identity: Identity, default_image: str) -> tuple[Cluster, str]:
    """Return the Cluster as its brokers ran last, and why, where its spec is known to have failed.

    Else the Cluster itself and ''. Settings that brokers take while they run stay as they are
    wanted, and so do the numbers of brokers and their volumes.
    """
    failed, good, spec = identity.failed, identity.good, cluster.spec
    wanted = identity.at_version(spec.version, spec.image, default_image)
    if failed is None or good is None or failed.key != _key(cluster, wanted):
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
        # The way back needs no approval: that was for the change that failed.
        update_policy="Auto",
    )
    return msgspec.structs.replace(cluster, spec=spec), failed.reason


def noted(cluster: Cluster, before: Identity, wanted: Identity, seen: ObservedCluster) -> Identity:
    """Return `wanted`, which follows the spec, with what this look at the brokers says of it.

    `before` is what was written down: the image to go back to is there.
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
        spec={
            "config": static_config(cluster),
            "listeners": msgspec.to_builtins(spec.listeners),
            "imagePullSecrets": msgspec.to_builtins(spec.image_pull_secrets),
            "pools": {
                pool.name: {
                    "resources": msgspec.to_builtins(pool.resources),
                    "podTemplate": msgspec.to_builtins(pool.pod_template),
                    "racks": list(pool.racks),
                }
                for pool in spec.pools
            },
        },
    )


def _key(cluster: Cluster, identity: Identity) -> str:
    """Name what pods are made from, of all pools."""
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
    """Return a broker that was made from the changes and has not been able to start since."""
    config = static_config(cluster)
    placed = {each.partition(": ")[0] for each in changes if each.endswith(_PLACES)}
    for broker in seen.brokers:
        if not broker.is_stuck or broker.outdated or dict(broker.config) != config:
            continue
        if broker.failing.startswith(_UNSCHEDULABLE) and broker.pool not in placed:
            continue
        if changes:
            return broker
    return None
