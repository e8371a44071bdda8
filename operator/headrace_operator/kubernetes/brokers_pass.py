"""One pass over a Cluster's objects: who the brokers are, then Services, settings, pods, volumes.

Each step can be repeated: it compares with what is there and does what is missing. The order makes
an end between any two of them harmless: a broker is written down before its pod can exist, and a
pod's settings are there before the pod.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from headrace_operator.apply import Failure
from headrace_operator.kubernetes.addresses import with_addresses
from headrace_operator.kubernetes.brokers_observed import is_owned
from headrace_operator.kubernetes.rolling import restart_pod, revision_of_pod
from headrace_operator.kubernetes.storage import expand_claims, have_templates_changed
from headrace_operator.plan import Action, ReconfigureBroker, StartBroker, StopBroker
from headrace_operator.plan.brokers import moves_left
from headrace_operator.render.brokers import render_surroundings
from headrace_operator.render.identity import (
    Identity,
    Node,
    cluster_id_of,
    next_ordinal,
    started,
    stopped,
)
from headrace_operator.render.names import (
    POOL_LABEL,
    broker_service,
    pod_name,
    selector,
    stateful_set,
)
from headrace_operator.render.pods import files_in_use, render_pool, render_settings
from headrace_operator.render.policies import POD_MONITOR, render_pod_monitor
from headrace_operator.render.services import external_listeners

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_operator.kubernetes.brokers_identity import Identities
    from headrace_operator.kubernetes.brokers_keeper import ObjectKeeper
    from headrace_operator.kubernetes.cache import Store
    from headrace_operator.kubernetes.client import KubernetesClient
    from headrace_operator.kubernetes.transport import Object
    from headrace_operator.kubernetes.zones import Zones
    from headrace_operator.plan import Observed
    from headrace_operator.resources import Cluster, Pool

__all__ = ["BrokersPass", "Tools"]


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What a pass works with."""

    client: KubernetesClient
    store: Store
    identities: Identities
    keeper: ObjectKeeper
    zones: Zones


class BrokersPass:
    """One pass. `identity` and `pending` are what it came to."""

    def __init__(
        self, tools: Tools, cluster: Cluster, identity: Identity | None, image: str
    ) -> None:
        """`image`: what brokers of a new Cluster run."""
        self.identity = identity
        self.pending: list[str] = []
        self._tools = tools
        self._cluster = cluster
        self._image = image
        self._namespace = cluster.metadata.namespace
        self._labels = selector(cluster)
        #: Pools whose settings and pods are described as they should be.
        self._kept: set[str] = set()

    async def run(self, actions: Sequence[Action], observed: Observed) -> tuple[Failure, ...]:
        """Perform the actions, and keep everything as it should be. Raises KubernetesError."""
        starts = [each for each in actions if isinstance(each, StartBroker)]
        if self.identity is None and not starts:
            return ()
        identity = self._settled(observed)
        for start in starts:
            identity = self._with_started(identity, start)
        stops = [each for each in actions if isinstance(each, StopBroker)]
        identity = await self._without_stopped(identity, stops)
        identity = await self._tools.zones.placed(self._cluster, identity)
        await self._save(identity)
        identity = await self._keep_surroundings(identity)
        await self._save(identity)
        for pool in self._cluster.spec.pools:
            if self._has_addresses(identity, pool):
                await self._keep_pool(identity, pool)
                self._kept.add(pool.name)
        await self._keep_former_pools(identity)
        await self._prune_services(identity)
        await self._keep_claims(identity)
        return await self._restart(
            [each for each in actions if isinstance(each, ReconfigureBroker)]
        )

    # Who the brokers are

    def _settled(self, observed: Observed) -> Identity:
        """Return the identity with what became known since: the quorum stands, shares are given."""
        spec = self._cluster.spec
        if self.identity is None:
            brokers = sum(pool.replicas for pool in spec.pools if "broker" in pool.roles)
            return Identity(
                cluster_id=cluster_id_of(self._cluster.metadata.uid),
                formed_with=max(1, brokers),
                image=self._image,
                version=spec.version,
            )
        identity = self.identity
        seen = observed.cluster
        if seen is not None and seen.is_reachable and seen.partitions is not None:
            is_formed = any(broker.is_registered for broker in seen.brokers)
            identity = msgspec.structs.replace(identity, is_formed=identity.is_formed or is_formed)
            if seen.balance is not None and not moves_left(seen) and not seen.reassigning:
                # An empty answer of a broker that does not know the new ones yet says nothing.
                served = {broker.node_id for broker in seen.brokers if broker.replicas}
                for node in identity.nodes:
                    if node.is_joining and (node.node_id in served or not node.is_broker):
                        node_now = msgspec.structs.replace(node, is_joining=False)
                        identity = identity.replaced(node_now)
        return identity.at_version(spec.version, self._image)

    def _with_started(self, identity: Identity, action: StartBroker) -> Identity:
        node = Node(
            node_id=action.node_id,
            pool=action.pool,
            ordinal=next_ordinal(identity, action.pool),
            roles=tuple(action.roles),
            rack=action.rack,
        )
        return started(identity, node)

    async def _without_stopped(self, identity: Identity, actions: Sequence[StopBroker]) -> Identity:
        """Take away brokers, each only as the last of its pool: a set shrinks from its end."""
        wanted = {action.node_id for action in actions}
        for node in sorted(identity.nodes, key=lambda node: -node.ordinal):
            if node.node_id not in wanted:
                continue
            if node == identity.pool(node.pool)[-1]:
                await self._tools.identities.unmark_claims(self._cluster, node)
                identity = stopped(identity, node.node_id)
        return identity

    async def _save(self, identity: Identity) -> None:
        kept = self._tools.identities.is_kept
        if identity != self.identity or not await kept(self._cluster):
            await self._tools.identities.save(self._cluster, identity)
            self.identity = identity

    # Services and what else is around

    async def _keep_surroundings(self, identity: Identity) -> Identity:
        live: dict[str, Object] = {}
        for obj in render_surroundings(self._cluster, identity):
            kept = await self._tools.keeper.keep(obj)
            if obj["kind"] == "Service":
                live[obj["metadata"]["name"]] = kept
        if self._cluster.spec.monitoring.enabled and await self._tools.client.serves(*POD_MONITOR):
            await self._tools.keeper.keep(render_pod_monitor(self._cluster))
        for node in identity.nodes:
            if node.is_broker:
                identity = identity.replaced(with_addresses(self._cluster, node, live))
        return identity

    def _has_addresses(self, identity: Identity, pool: Pool) -> bool:
        """Whether every broker of the pool can say where it is. Load balancers take a while."""
        is_complete = True
        for node in identity.pool(pool.name):
            for listener in external_listeners(self._cluster):
                known = node.node_ports if listener.type == "NodePort" else node.addresses
                if node.is_broker and listener.name not in known:
                    service = broker_service(self._cluster, node, listener.name)
                    self.pending.append(f"Service {service} has no address yet")
                    is_complete = False
        return is_complete

    async def _prune_services(self, identity: Identity) -> None:
        rendered = {
            obj["metadata"]["name"]
            for obj in render_surroundings(self._cluster, identity)
            if obj["kind"] == "Service"
        }
        for service in self._tools.store.list("Service", self._namespace, self._labels):
            if service["metadata"]["name"] not in rendered and self._owns(service):
                await self._delete(service)

    # Pods

    async def _keep_pool(self, identity: Identity, pool: Pool) -> None:
        name = stateful_set(self._cluster, pool)
        labels = self._labels | {POOL_LABEL: pool.name}
        running = [
            (pod["metadata"]["name"], revision_of_pod(pod))
            for pod in self._tools.store.list("Pod", self._namespace, labels)
        ]
        former = self._tools.store.get("ConfigMap", self._namespace, name)
        kept = files_in_use((former or {}).get("data") or {}, running)
        await self._tools.keeper.keep(render_settings(self._cluster, identity, pool, kept))
        wanted = render_pool(self._cluster, identity, pool)
        live = self._tools.store.get("StatefulSet", self._namespace, name)
        if live is not None and have_templates_changed(live, wanted):
            await self._tools.client.delete(live, uid=live["metadata"]["uid"], propagation="Orphan")
            self._tools.keeper.forget(live)
        await self._tools.keeper.keep(wanted)

    async def _keep_former_pools(self, identity: Identity) -> None:
        """Shrink sets of pools that the spec has no more, and delete them when they are empty."""
        pools = {pool.name for pool in self._cluster.spec.pools}
        for live in self._tools.store.list("StatefulSet", self._namespace, self._labels):
            name = live["metadata"]["labels"].get(POOL_LABEL, "")
            if name in pools or not self._owns(live):
                continue
            replicas = len(identity.pool(name))
            if replicas != live["spec"].get("replicas"):
                await self._tools.client.patch(live, {"spec": {"replicas": replicas}})
            elif not replicas and not live.get("status", {}).get("replicas"):
                settings = self._tools.store.get(
                    "ConfigMap", self._namespace, live["metadata"]["name"]
                )
                for obj in (live, settings):
                    if obj is not None:
                        await self._delete(obj)

    async def _restart(self, actions: Sequence[ReconfigureBroker]) -> tuple[Failure, ...]:
        for action in actions:
            node = self.identity.node(action.node_id) if self.identity else None
            # Made from an old description a pod would be outdated again, for ever.
            if node is None or node.pool not in self._kept:
                continue
            owner = self._tools.store.get(
                "StatefulSet", self._namespace, stateful_set(self._cluster, node.pool)
            )
            pod = self._tools.store.get("Pod", self._namespace, pod_name(self._cluster, node))
            if owner is not None:
                waits = await restart_pod(self._tools.client, owner, pod)
                self.pending += [waits] if waits else []
        return ()

    # Volumes

    async def _keep_claims(self, identity: Identity) -> None:
        await self._tools.identities.mark_claims(self._cluster, identity)
        sizes = {pool.name: pool.storage.size for pool in self._cluster.spec.pools}
        for node in identity.nodes:
            if node.pool in sizes:
                claims = self._tools.identities.claims_of(self._cluster, node)
                self.pending += await expand_claims(self._tools.client, claims, sizes[node.pool])

    def _owns(self, obj: Object) -> bool:
        return is_owned(obj, self._cluster.metadata.uid)

    async def _delete(self, obj: Object) -> None:
        await self._tools.client.delete(obj, uid=obj["metadata"]["uid"])
        self._tools.keeper.forget(obj)
