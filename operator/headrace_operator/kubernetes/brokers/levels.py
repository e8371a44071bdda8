"""The feature levels that images support: an older image is refused before it rolls out. Pure.

A finalized level often cannot be lowered, and a broker that does not support it cannot take part.
The levels that brokers of an image support are recorded while they serve. An image that never ran
here is unknown: its first broker shows whether it works, and a failed change is rolled back
(`rollback`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from headrace_operator.plan import ObservedCluster
    from headrace_operator.render.identity import Identity
    from headrace_operator.resources import Cluster

__all__ = ["with_image_kept", "with_levels"]

#: How many images are remembered, the latest ones.
IMAGES_MAX = 8


def with_levels(identity: Identity, seen: ObservedCluster) -> Identity:
    """Record the cluster's levels, and those supported by an image that all brokers run."""
    if seen.features is not None:
        identity = msgspec.structs.replace(identity, levels=dict(seen.features))
    if not seen.brokers or not all(
        broker.is_registered and broker.is_ready and not broker.outdated for broker in seen.brokers
    ):
        return identity
    brokers = {broker.node_id for broker in seen.brokers if "broker" in broker.roles}
    if not brokers or brokers != seen.supported_features.keys() & brokers:
        return identity
    answers = [seen.supported_features[node_id] for node_id in sorted(brokers)]
    names = sorted(set.intersection(*(set(each) for each in answers)))
    found = {
        name: (max(each[name][0] for each in answers), min(each[name][1] for each in answers))
        for name in names
    }
    if identity.supported.get(identity.image) == found:
        return identity
    others = [each for each in identity.supported.items() if each[0] != identity.image]
    supported = dict(others[1 - IMAGES_MAX :]) | {identity.image: found}
    return msgspec.structs.replace(identity, supported=supported)


def with_image_kept(
    cluster: Cluster, identity: Identity, default_image: str
) -> tuple[Cluster, str]:
    """Return the Cluster with its present image, and why, if the new one lacks its levels.

    Else the Cluster itself and ''.
    """
    spec = cluster.spec
    wanted = identity.at_version(spec.version, spec.image, default_image).image
    if wanted == identity.image:
        return cluster, ""
    lacking = list(_lacking(identity, wanted))
    if not lacking:
        return cluster, ""
    where = "spec.image" if spec.image else f"spec.version {spec.version}, with the image"
    reason = (
        f"{where}: {wanted} {'; '.join(lacking)}: brokers keep {identity.image}. Name an image that"
        " supports it, or lower the level first, where nothing is lost by that (spec.features)"
    )
    spec = msgspec.structs.replace(
        spec,
        image=identity.image if identity.is_image_named else None,
        version=identity.version or spec.version,
    )
    return msgspec.structs.replace(cluster, spec=spec), reason


def _lacking(identity: Identity, image: str) -> list[str]:
    supported = identity.supported.get(image)
    if supported is None:
        return []
    found = []
    for name, level in sorted(identity.levels.items()):
        lowest, highest = supported.get(name, (0, 0))
        if not lowest <= level <= highest:
            can = f"{lowest} to {highest}" if name in supported else "no level"
            found.append(f"supports {can} of {name}, which is at {level}")
    return found
