"""All Kubernetes objects of a Cluster, in the order in which they are applied. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from headrace_operator.render.names import identity_name, metadata
from headrace_operator.render.pods import render_pool, render_settings
from headrace_operator.render.policies import render_policies
from headrace_operator.render.services import render_services

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_operator.render.identity import Identity
    from headrace_operator.resources import Cluster

__all__ = ["IDENTITY_KEY", "render_brokers", "render_identity", "render_surroundings"]

IDENTITY_KEY = "identity.json"


def render_identity(cluster: Cluster, identity: Identity) -> dict[str, Any]:
    """Render the ConfigMap that stores the brokers' identities."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(cluster, identity_name(cluster)),
        "data": {IDENTITY_KEY: msgspec.json.format(msgspec.json.encode(identity)).decode()},
    }


def render_surroundings(cluster: Cluster, identity: Identity) -> list[dict[str, Any]]:
    """Render the objects that do not need Services' addresses, Services included."""
    return [*render_policies(cluster), *render_services(cluster, identity)]


def render_brokers(
    cluster: Cluster, identity: Identity, kept: Mapping[str, Mapping[str, str]]
) -> list[dict[str, Any]]:
    """Render settings and StatefulSets; the identity has all addresses.

    `kept`: by pool, the settings files that running pods were started with.
    """
    objects: list[dict[str, Any]] = []
    for pool in cluster.spec.pools:
        objects.append(render_settings(cluster, identity, pool, kept.get(pool.name, {})))
        objects.append(render_pool(cluster, identity, pool))
    return objects
