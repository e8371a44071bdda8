"""A Cluster that is corrected before it ever formed starts over with its present spec. Pure.

The first spec decides the initial voters, because a quorum begins only once. As long as too few of
those voters have ever run to elect a leader, nothing has been decided or written, and no broker
needs to be drained.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from headrace_operator.render.names import pod_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_operator.kubernetes.api.transport import Object
    from headrace_operator.render.identity import Identity
    from headrace_operator.resources import Cluster

__all__ = ["begins_anew", "has_run", "with_runs"]


def begins_anew(cluster: Cluster, identity: Identity, pods: Mapping[str, Object]) -> bool:
    """Whether these brokers never formed a cluster, and the spec now wants other ones."""
    if identity.is_formed or _shape(identity) == Counter(
        {pool.name: pool.replicas for pool in cluster.spec.pools if pool.replicas}
    ):
        return False
    voters = identity.controllers
    ran = [each for each in with_runs(cluster, identity, pods).controllers if each.has_run]
    return 2 * len(ran) <= len(voters)


def with_runs(cluster: Cluster, identity: Identity, pods: Mapping[str, Object]) -> Identity:
    """Record which brokers have run, while that matters: a recreated pod does not show it."""
    if identity.is_formed:
        return identity
    nodes = tuple(
        msgspec.structs.replace(
            node, has_run=node.has_run or has_run(pods.get(pod_name(cluster, node)))
        )
        for node in identity.nodes
    )
    return msgspec.structs.replace(identity, nodes=nodes)


def has_run(pod: Object | None) -> bool:
    """Whether a container of the pod was ever started."""
    containers = (pod or {}).get("status", {}).get("containerStatuses") or []
    return any(
        each.get("restartCount") or {"running", "terminated"} & {*state, *last}
        for each in containers
        for state, last in [(each.get("state") or {}, each.get("lastState") or {})]
    )


def _shape(identity: Identity) -> Counter[str]:
    return Counter(node.pool for node in identity.nodes)
