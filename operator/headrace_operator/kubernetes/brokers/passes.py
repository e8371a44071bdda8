"""One pass over a Cluster's objects: identities, then Services, settings, pods, volumes.

Each step is idempotent: it compares the wanted with the present objects and makes the difference.
The order makes an interruption between any two steps harmless: a broker is recorded before its pod
can exist, and a pod's settings exist before the pod. An object that the API server refuses blocks
only the steps that need it.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import msgspec

from headrace_operator.kubernetes.api.client import KubernetesError
from headrace_operator.kubernetes.brokers.addresses import (
    missing_addresses,
    with_addresses,
    with_bootstrap_ports,
)
from headrace_operator.kubernetes.brokers.claims import (
    is_shrinking,
    keep_claims,
    release_claims,
    retention_of_former,
)
from headrace_operator.kubernetes.brokers.described import former_pools, with_description
from headrace_operator.kubernetes.brokers.forming import begins_anew, with_runs
from headrace_operator.kubernetes.brokers.identity import claim_uids
from headrace_operator.kubernetes.brokers.keeper import Refusals, includes
from headrace_operator.kubernetes.brokers.levels import with_levels
from headrace_operator.kubernetes.brokers.observed import served_from
from headrace_operator.kubernetes.brokers.refilling import (
    give_up,
    may_give_up,
    replace_volumes,
    uids_of,
    with_refills,
    with_successor,
    without_refilled,
)
from headrace_operator.kubernetes.brokers.rollback import noted
from headrace_operator.kubernetes.brokers.rolling import restart_pod, revision_of_pod
from headrace_operator.kubernetes.brokers.storage import expand_claims, have_templates_changed
from headrace_operator.kubernetes.owners import check_owner, is_controlled
from headrace_operator.plan import (
    Action,
    ReconfigureBroker,
    RefillBroker,
    ReplaceVolumes,
    StartBroker,
    StopBroker,
)
from headrace_operator.plan.moves import moves_left
from headrace_operator.render.brokers import render_identity, render_surroundings
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
from headrace_operator.render.policies import (
    POD_MONITOR,
    render_pod_monitor,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from headrace_operator.apply import Failure
    from headrace_operator.kubernetes.api.transport import Object
    from headrace_operator.kubernetes.brokers.tools import Tools
    from headrace_operator.plan import Observed, ObservedCluster
    from headrace_operator.resources import Cluster, Pool
    from headrace_operator.resources.cluster import Listener

__all__ = ["BrokersPass"]

PRUNED_KINDS = ("Service", "ConfigMap", "ServiceAccount", "PodDisruptionBudget", "NetworkPolicy")


class BrokersPass:
    """One pass. `identity` and `pending` are its results."""

    def __init__(
        self,
        tools: Tools,
        cluster: Cluster,
        identity: Identity | None,
        image: str,
        *,
        pods: Mapping[str, Object],
        is_taken_back: bool = False,
    ) -> None:
        """`image`: the brokers' image for a new Cluster. `pods`: the Cluster's, by name.

        `is_taken_back`: the Cluster is not the one in the spec, but the one its brokers ran before.
        """
        self.identity = identity
        self.pending: list[str] = []
        self._tools = tools
        self._cluster = cluster
        #: The Cluster as its Services are to be.
        self._around = cluster
        self._image = image
        self._pods = pods
        self._is_taken_back = is_taken_back
        self._namespace = cluster.metadata.namespace
        self._labels = selector(cluster)
        #: Pools whose settings and pod templates are up to date.
        self._kept: set[str] = set()
        self._refusals = Refusals(cluster.key)

    async def run(
        self,
        actions: Sequence[Action],
        observed: Observed,
        listeners: tuple[Listener, ...] | None = None,
    ) -> tuple[Failure, ...]:
        """Carry out the actions and apply what differs; return the refusals.

        `listeners`: those that Services are made for, where brokers do not serve them yet.
        Raises KubernetesError if the failure is not about a single object.
        """
        starts = [each for each in actions if isinstance(each, StartBroker)]
        if self.identity is None and not starts:
            return ()
        if listeners is not None:
            spec = msgspec.structs.replace(self._cluster.spec, listeners=listeners)
            self._around = msgspec.structs.replace(self._cluster, spec=spec)
        identity = self._settled(observed)
        if self.identity is not None and identity.failed not in (None, self.identity.failed):
            # The rest of this pass would mix both specs; the next one uses the former spec.
            await self._save(identity)
            return ()
        for start in starts:
            identity = self._with_started(identity, start)
        places = {pod_name(self._cluster, node) for node in identity.nodes}
        for node in self.identity.nodes if self.identity else ():
            # In a Cluster that begins anew.
            if pod_name(self._cluster, node) not in places:
                await self._release(node)
        stops = [each for each in actions if isinstance(each, StopBroker)]
        identity = await self._without_stopped(identity, stops)
        refills = [each for each in actions if isinstance(each, RefillBroker)]
        identity = with_refills(self._cluster, identity, refills, self._tools, self._pods)
        identity = await self._tools.zones.placed(self._cluster, identity)
        identity = with_description(self._cluster, identity)
        # A broker's identity is stored before any of its objects exists.
        with self._refusals.recorded(render_identity(self._cluster, identity)):
            await self._save(identity)
            identity = await self._keep_surroundings(identity)
            await self._save(identity)
            await self._keep_pools(identity)
            await self._prune(identity)
            await self._keep_claims(identity)
            await give_up(self._cluster, identity, self._tools, self._refusals)
            replaced = [each for each in actions if isinstance(each, ReplaceVolumes)]
            await replace_volumes(self._cluster, identity, replaced, self._tools, self._refusals)
            await self._restart([each for each in actions if isinstance(each, ReconfigureBroker)])
        if listeners is not None and not self.pending:
            self.pending.append("all Services have their addresses: brokers get the listeners next")
        return tuple(self._refusals.failures)

    async def keep(self, *, has_pools: bool) -> tuple[Failure, ...]:
        """Keep the objects that there are, and change no broker.

        `has_pools`: the Cluster is described as its brokers were last. Else only the objects around
        them are kept: Services, policies, accounts, monitoring.
        """
        identity = self.identity
        if identity is None:
            return ()
        with self._refusals.recorded(render_identity(self._cluster, identity)):
            if has_pools:
                await self._save(identity)
            await self._keep_surroundings(identity)
            if has_pools:
                await self._keep_pools(identity)
            await self._prune(identity)
            await keep_claims(self._cluster, identity, self._tools, self._refusals)
        return tuple(self._refusals.failures)

    async def _keep_pools(self, identity: Identity) -> None:
        former = former_pools(self._cluster, identity)
        pools = (*self._cluster.spec.pools, *former)
        spec = msgspec.structs.replace(self._cluster.spec, pools=pools)
        cluster = msgspec.structs.replace(self._cluster, spec=spec)
        for pool in pools:
            nodes = self._addressed(identity, pool)
            if nodes is not None and await self._keep_pool(cluster, identity, pool, nodes):
                self._kept.add(pool.name)
        await self._keep_former_pools(identity, {pool.name for pool in pools})

    # Identities

    def _settled(self, observed: Observed) -> Identity:
        """Return the identity with new facts: the quorum exists, shares are assigned."""
        spec = self._cluster.spec
        if self.identity is None or (
            # As the plan saw it: its actions start all of them.
            observed.cluster is None and begins_anew(self._cluster, self.identity, self._pods)
        ):
            return self._begun()
        identity = with_runs(self._cluster, self.identity, self._pods)
        seen = observed.cluster
        if seen is not None and seen.is_reachable and seen.partitions is not None:
            is_formed = any(broker.is_registered for broker in seen.brokers)
            identity = msgspec.structs.replace(identity, is_formed=identity.is_formed or is_formed)
            identity = without_refilled(self._cluster, identity, seen, self._tools)
            if seen.balance is not None and not moves_left(seen) and not seen.reassigning:
                # A broker that does not know the new ones yet would answer that nothing is to move.
                served = {broker.node_id for broker in seen.brokers if broker.replicas}
                for node in identity.nodes:
                    if node.is_joining and (node.node_id in served or not node.is_broker):
                        node_now = msgspec.structs.replace(node, is_joining=False)
                        identity = identity.replaced(node_now)
        if seen is not None and seen.quorum is not None:
            identity = self._with_disks(identity, seen)
        if seen is not None and seen.is_reachable:
            identity = with_levels(identity, seen)
        wanted = identity.at_version(spec.version, spec.image, self._image)
        if seen is None or self._is_taken_back:
            return wanted
        return noted(self._cluster, identity, wanted, seen)

    def _begun(self) -> Identity:
        """Return the identity of a cluster without brokers, or whose brokers never formed it."""
        spec, former = self._cluster.spec, self.identity
        brokers = sum(pool.replicas for pool in spec.pools if "broker" in pool.roles)
        return Identity(
            cluster_id=cluster_id_of(self._cluster.metadata.uid),
            formed_with=max(1, brokers),
            redescribed=former.redescribed + 1 if former else 0,
            # A broker that ran has stored the former voters: it starts in another directory.
            lives=former.lives if former else {},
            image=spec.image or self._image,
            is_image_named=spec.image is not None,
            version=spec.version,
            bootstrap_ports=former.bootstrap_ports if former else {},
        )

    def _with_disks(self, identity: Identity, seen: ObservedCluster) -> Identity:
        """Record who votes, and the volumes of those that serve, while the quorum has a leader."""
        disks = {key: has for key, has in identity.disks.items() if identity.node(int(key))}
        for broker in seen.brokers:
            node = identity.node(broker.node_id)
            if node is not None and node.is_controller and broker.is_registered and broker.is_ready:
                claims = self._tools.identities.claims_of(self._cluster, node)
                # It was asked before: by now its pod may be gone, and its claims may be others.
                uids = claim_uids(claims)
                if uids and served_from(self._pods.get(pod_name(self._cluster, node)), claims):
                    disks |= {str(node.node_id): uids}
        voting = seen.quorum.voters if seen.quorum else ()
        voters = tuple(sorted({each.node_id for each in voting}))
        return msgspec.structs.replace(identity, disks=disks, voters=voters)

    def _with_started(self, identity: Identity, action: StartBroker) -> Identity:
        node = Node(
            node_id=action.node_id,
            pool=action.pool,
            ordinal=next_ordinal(identity, action.pool),
            roles=tuple(action.roles),
            rack=action.rack,
            # Requests about a former broker with this id do not concern this one.
            replacement=next(
                (
                    each.request_id
                    for each in self._cluster.spec.replace_volumes
                    if each.broker == action.node_id
                ),
                "",
            ),
        )
        return started(identity, node)

    async def _without_stopped(self, identity: Identity, actions: Sequence[StopBroker]) -> Identity:
        """Take away brokers, each as the last of its pool: a set shrinks from its end.

        In another place another one begins.
        """
        for action in actions:
            former = identity.node(action.node_id)
            if former is None or action.successor is None:
                continue
            # Else this one would be drained, and its place never free.
            if await may_give_up(self._cluster, former, self._tools, self._refusals):
                uids = uids_of(self._cluster, former, self._tools, self._pods)
                identity = with_successor(self._cluster, identity, former, action.successor, uids)
        wanted = {action.node_id for action in actions if action.successor is None}
        for node in sorted(identity.nodes, key=lambda node: -node.ordinal):
            if node.node_id not in wanted:
                continue
            if node == identity.pool(node.pool)[-1] and await self._release(node):
                identity = stopped(identity, node.node_id)
        return identity

    async def _release(self, node: Node) -> bool:
        return await release_claims(self._cluster, node, self._tools, self._refusals)

    async def _save(self, identity: Identity) -> None:
        kept = self._tools.identities.is_kept
        if identity != self.identity or not await kept(self._cluster):
            await self._tools.identities.save(self._cluster, identity)
            self.identity = identity

    # Services and other objects

    async def _keep_surroundings(self, identity: Identity) -> Identity:
        live: dict[str, Object] = {}
        for obj in render_surroundings(self._around, identity):
            if obj["kind"] in self._refusals.slow:
                continue
            with self._refusals.recorded(obj):
                kept = await self._tools.keeper.keep(obj)
                if obj["kind"] == "Service":
                    live[obj["metadata"]["name"]] = kept
        await self._keep_monitor()
        for node in identity.nodes:
            if node.is_broker:
                identity = identity.replaced(with_addresses(self._around, node, live))
        return with_bootstrap_ports(self._around, identity, live)

    async def _keep_monitor(self) -> None:
        api_version, kind = POD_MONITOR
        is_watched = kind in self._tools.store.watched
        if not is_watched and not await self._tools.client.serves(api_version, kind):
            return
        monitor = render_pod_monitor(self._cluster)
        with self._refusals.recorded(monitor):
            try:
                if self._cluster.spec.monitoring.enabled:
                    await self._tools.keeper.keep(monitor)
                elif (live := await self._tools.keeper.find(monitor)) and self._owns(live):
                    await self._delete(live)
            except KubernetesError as error:
                # Its CRD was removed a moment ago: it is applied again when the kind is back.
                if not error.is_not_found or await self._tools.client.serves(api_version, kind):
                    raise

    def _addressed(self, identity: Identity, pool: Pool) -> tuple[Node, ...] | None:
        """Return the pool's brokers up to the first that lacks an address; None: the pool waits.

        Load balancers take a while. A set has no gaps, and none that is there is made smaller: its
        controller would delete the pods of brokers that serve.
        """
        nodes = identity.pool(pool.name)
        for node in nodes:
            for name in missing_addresses(self._around, node):
                service = broker_service(self._around, node, name)
                self.pending.append(f"Service {service} has no address yet")
        ready = tuple(
            itertools.takewhile(lambda node: not missing_addresses(self._cluster, node), nodes)
        )
        if len(ready) == len(nodes):
            return nodes
        name = stateful_set(self._cluster, pool)
        live = self._tools.store.get("StatefulSet", self._namespace, name) or {}
        present = max(
            live.get("spec", {}).get("replicas", 0),
            *(node.ordinal + 1 for node in nodes if pod_name(self._cluster, node) in self._pods),
            0,
        )
        return ready if ready and len(ready) >= present else None

    async def _prune(self, identity: Identity) -> None:
        """Delete own objects that are no longer wanted."""
        wanted = {
            (obj["kind"], obj["metadata"]["name"])
            for obj in (
                *render_surroundings(self._around, identity),
                render_identity(self._cluster, identity),
            )
        }
        # A former pool's settings are deleted with its set, when its last pod is gone.
        pools = {pool.name for pool in self._cluster.spec.pools}
        pools |= {node.pool for node in identity.nodes}
        names = {stateful_set(self._cluster, pool) for pool in pools}
        sets = self._tools.store.list("StatefulSet", self._namespace, self._labels)
        names |= {live["metadata"]["name"] for live in sets}
        wanted |= {("ConfigMap", name) for name in names}
        for kind in PRUNED_KINDS:
            for live in self._tools.store.list(kind, self._namespace, self._labels):
                if (kind, live["metadata"]["name"]) not in wanted and self._owns(live):
                    with self._refusals.recorded(live):
                        await self._delete(live)

    # Pods

    async def _keep_pool(
        self, cluster: Cluster, identity: Identity, pool: Pool, nodes: Sequence[Node]
    ) -> bool:
        """Return whether the pool's settings and pod template are up to date.

        `cluster`: with this pool, which the spec may no longer have. `nodes`: its brokers that may
        start.
        """
        name = stateful_set(cluster, pool)
        labels = self._labels | {POOL_LABEL: pool.name}
        pods = self._tools.store.list("Pod", self._namespace, labels)
        running = [(pod["metadata"]["name"], revision_of_pod(pod)) for pod in pods]
        former = self._tools.store.get("ConfigMap", self._namespace, name)
        kept = files_in_use((former or {}).get("data") or {}, running)
        settings = render_settings(cluster, identity, pool, kept, nodes)
        with self._refusals.recorded(settings):
            await self._tools.keeper.keep(settings)
            live = self._tools.store.get("StatefulSet", self._namespace, name)
            shrinks = is_shrinking(live, pods, len(nodes))
            wanted = render_pool(cluster, identity, pool, nodes, is_shrinking=shrinks)
            with self._refusals.recorded(wanted):
                await self._keep_set(wanted)
                return True
        return False

    async def _keep_set(self, wanted: Object) -> None:
        live = self._tools.store.get("StatefulSet", self._namespace, wanted["metadata"]["name"])
        is_there = live is not None and not live["metadata"].get("deletionTimestamp")
        if live is not None and is_there and have_templates_changed(live, wanted):
            check_owner(live, wanted)
            # The existing set stays if its replacement would be refused.
            await self._tools.client.create(_as_new(wanted), is_dry_run=True)
            await self._tools.client.delete(live, uid=live["metadata"]["uid"], propagation="Orphan")
            self._tools.keeper.forget(live)
        await self._tools.keeper.keep(wanted)

    async def _keep_former_pools(self, identity: Identity, pools: Collection[str]) -> None:
        """Shrink sets of other pools; delete them when they are empty.

        A set is its pool's by its name: anybody may change a label.
        """
        kept = {stateful_set(self._cluster, pool) for pool in pools}
        for live in self._tools.store.list("StatefulSet", self._namespace, self._labels):
            name = live["metadata"]["name"]
            if name in kept or not self._owns(live):
                continue
            owners = [stateful_set(self._cluster, node.pool) for node in identity.nodes]
            replicas = owners.count(name)
            pods = self._tools.store.list("Pod", self._namespace, self._labels)
            wanted = {"replicas": replicas, **retention_of_former(live, pods, replicas)}
            with self._refusals.recorded(live):
                if not includes(live["spec"], wanted):
                    await self._tools.client.patch(live, {"spec": wanted})
                elif not replicas and not live.get("status", {}).get("replicas"):
                    # Its settings are pruned once it is gone.
                    await self._delete(live)

    async def _restart(self, actions: Sequence[ReconfigureBroker]) -> None:
        if "ServiceAccount" in self._refusals:
            # No pod can be made without it.
            return
        for action in actions:
            node = self.identity.node(action.node_id) if self.identity else None
            # A pod made from an old template would be outdated again, forever.
            if node is None or node.pool not in self._kept:
                continue
            owner = self._tools.store.get(
                "StatefulSet", self._namespace, stateful_set(self._cluster, node.pool)
            )
            pod = self._tools.store.get("Pod", self._namespace, pod_name(self._cluster, node))
            if owner is not None and pod is not None:
                with self._refusals.recorded(pod):
                    waits = await restart_pod(self._tools.client, owner, pod)
                    self.pending += [waits] if waits else []

    # Volumes

    async def _keep_claims(self, identity: Identity) -> None:
        await keep_claims(self._cluster, identity, self._tools, self._refusals)
        sizes = {pool.name: pool.storage.size for pool in self._cluster.spec.pools}
        for node in identity.nodes:
            if node.pool in sizes:
                claims = self._tools.identities.claims_of(self._cluster, node)
                self.pending += await expand_claims(
                    self._tools.client, claims, sizes[node.pool], self._refusals
                )

    def _owns(self, obj: Object) -> bool:
        return is_controlled(obj, self._cluster.metadata.uid)

    async def _delete(self, obj: Object) -> None:
        await self._tools.client.delete(obj, uid=obj["metadata"]["uid"])
        self._tools.keeper.forget(obj)


def _as_new(obj: Object) -> Object:
    """Return an object as a new one, under an unused name."""
    metadata = dict(obj["metadata"])
    metadata["generateName"] = f"{metadata.pop('name')}-"
    return {**obj, "metadata": metadata}
