"""Where pods run: the zone of each pod's node, which is its broker's rack.

A node keeps its zone for life, so it is looked up once per pod: a lost node's name may be reused by
another node. If the operator may not read nodes (without manifests/components/nodes), racks come
from the pools, in turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace_operator.kubernetes.api.client import KubernetesError
from headrace_operator.render.names import pod_name

if TYPE_CHECKING:
    from headrace_operator.kubernetes.api.cache import Store
    from headrace_operator.kubernetes.api.client import KubernetesClient, Object
    from headrace_operator.render.identity import Identity, Node
    from headrace_operator.resources import Cluster, Pool

__all__ = ["Zones"]

ZONE_LABEL = "topology.kubernetes.io/zone"


class Zones:
    """Zones of nodes."""

    def __init__(self, client: KubernetesClient, store: Store) -> None:
        """The store has the pods."""
        self._client = client
        self._store = store
        #: By the uids of pods.
        self._known: dict[str, str] = {}

    async def placed(self, cluster: Cluster, identity: Identity) -> Identity:
        """Return the identity with brokers in the racks of their pods.

        If a pod is not scheduled yet, or its node has no zone, the broker keeps its rack. Raises
        KubernetesError.
        """
        pools = {pool.name: pool for pool in cluster.spec.pools}
        for node in identity.nodes:
            pool = pools.get(node.pool)
            if pool is None:
                continue
            rack = await self._rack_of(cluster, pool, node)
            if rack != node.rack:
                identity = identity.replaced(msgspec.structs.replace(node, rack=rack))
        return identity

    async def _rack_of(self, cluster: Cluster, pool: Pool, node: Node) -> str | None:
        if not pool.racks:
            return None
        pod = self._store.get("Pod", cluster.metadata.namespace, pod_name(cluster, node))
        zone = await self._zone(pod) if pod and pod["spec"].get("nodeName") else None
        if zone in pool.racks:
            return zone
        return node.rack if node.rack in pool.racks else pool.racks[node.node_id % len(pool.racks)]

    async def _zone(self, pod: Object) -> str | None:
        uid = pod["metadata"]["uid"]
        if uid in self._known:
            return self._known[uid]
        try:
            found = await self._client.get("v1", "Node", None, pod["spec"]["nodeName"])
        except KubernetesError as error:
            if not error.is_forbidden:
                raise
            return None
        zone = ((found or {}).get("metadata", {}).get("labels") or {}).get(ZONE_LABEL)
        if zone is not None:
            self._known[uid] = zone
        return zone
