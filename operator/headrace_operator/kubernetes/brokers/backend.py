"""The brokers of Clusters on Kubernetes, for the reconciler.

The plan makes the decisions. All lasting state is in Kubernetes: the brokers' identities in a
ConfigMap, a pod's origin on the pod. So this may be interrupted between any two requests.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace_operator.balance import BalanceError, fetch_plan
from headrace_operator.kubernetes.brokers.described import as_described, with_described_listeners
from headrace_operator.kubernetes.brokers.forming import begins_anew
from headrace_operator.kubernetes.brokers.identity import Identities, claim_uids
from headrace_operator.kubernetes.brokers.keeper import ObjectKeeper
from headrace_operator.kubernetes.brokers.levels import with_image_kept
from headrace_operator.kubernetes.brokers.losses import Losses
from headrace_operator.kubernetes.brokers.observed import Seen, is_owned, observed_broker
from headrace_operator.kubernetes.brokers.passes import BrokersPass
from headrace_operator.kubernetes.brokers.published import Published
from headrace_operator.kubernetes.brokers.rollback import as_it_ran, with_listeners_kept
from headrace_operator.kubernetes.brokers.storage import with_classes_kept
from headrace_operator.kubernetes.brokers.tools import Tools
from headrace_operator.kubernetes.brokers.unstarted import Unstarted, with_hindrance
from headrace_operator.kubernetes.brokers.zones import Zones
from headrace_operator.kubernetes.spec_check import cluster_spec_problems
from headrace_operator.plan import Observed, ObservedCluster, Problem, Waiting
from headrace_operator.plan.brokers import target_of, unsafe
from headrace_operator.render.names import (
    HTTP_PORT,
    POOL_LABEL,
    REPLICATION_PORT,
    bootstrap_service,
    headless_service,
    pod_name,
    selector,
)
from headrace_operator.resources import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace_operator.apply import Failure
    from headrace_operator.kubernetes.api.cache import Store
    from headrace_operator.kubernetes.api.client import KubernetesClient
    from headrace_operator.kubernetes.api.transport import Object
    from headrace_operator.plan import Action, Desired, Key, Plan, TopicPartition
    from headrace_operator.render.identity import Identity
    from headrace_operator.resources import Cluster
    from headrace_operator.resources.cluster import Listener

__all__ = ["BrokersOnKubernetes"]

DEFAULT_IMAGE = "headrace/headrace:0.1.0"


@dataclass(kw_only=True)
class _Memory:
    """The cache of a Cluster: later passes can rebuild it."""

    identity: Identity | None = None
    #: What the last pass was waiting for.
    pending: tuple[str, ...] = ()
    out_of_sync_since: dict[TopicPartition, str] = field(default_factory=dict)
    #: Whether all brokers answered when last asked.
    is_whole: bool = False
    #: The listeners in the spec, where brokers keep the former ones for want of an address.
    listeners: tuple[Listener, ...] | None = None
    #: Whether brokers keep their former configuration after a failed change.
    is_taken_back: bool = False


class BrokersOnKubernetes:
    """A `BrokerBackend`: StatefulSets, pods, volumes and the objects around them."""

    def __init__(
        self,
        client: KubernetesClient,
        store: Store,
        *,
        image: str = DEFAULT_IMAGE,
        admin_addresses: Mapping[tuple[str, str], str] | None = None,
    ) -> None:
        """`image`: the brokers' image for new Clusters that name none.

        `admin_addresses`: how an operator outside of Kubernetes reaches brokers, by the Cluster's
        namespace and name.
        """
        self._store = store
        self._image = image
        self._admin_addresses = admin_addresses or {}
        self._identities = Identities(client, store)
        self._losses = Losses(client, self._identities)
        self._unstarted = Unstarted(client)
        self._published = Published(client)
        self._tools = Tools(
            client=client,
            store=store,
            identities=self._identities,
            keeper=ObjectKeeper(client, store),
            zones=Zones(client, store),
        )
        self._memories: dict[Key, _Memory] = {}

    def bootstrap_servers(self, cluster: Cluster) -> str:
        """See BrokerBackend."""
        memory = self._memories.get(cluster.key)
        if memory is None or memory.identity is None:
            return ""
        namespace = cluster.metadata.namespace
        known = self._admin_addresses.get((namespace, cluster.metadata.name))
        # The pods' own names: the bootstrap Service has no endpoints before the first broker is
        # ready.
        return known or f"{headless_service(cluster)}.{namespace}.svc:{REPLICATION_PORT}"

    async def effective(self, cluster: Cluster) -> tuple[Cluster, tuple[Problem | Waiting, ...]]:
        """See BrokerBackend."""
        identity = await self._identities.load(cluster)
        if identity is None:
            return cluster, await self._wait_for_former(cluster)
        memory = self._memories.setdefault(cluster.key, _Memory())
        memory.listeners = None
        seen = self._seen(cluster)
        if not _is_held_back(cluster):
            written = cluster.spec.listeners
            # First, as all below judges the spec that brokers are made from.
            cluster = with_described_listeners(cluster, identity, seen.services)
            memory.listeners = written if written != cluster.spec.listeners else None
        found, taken_back = as_it_ran(cluster, identity, self._image)
        memory.is_taken_back = bool(taken_back)
        claims: dict[str, list[Object]] = {}
        for node in identity.nodes:
            claims.setdefault(node.pool, []).extend(self._identities.claims_of(cluster, node))
        sets = {
            live["metadata"]["labels"].get(POOL_LABEL, ""): live
            for live in seen.stateful_sets.values()
        }
        found, kept = with_classes_kept(found, claims, sets)
        found, lacking = with_image_kept(found, identity, self._image)
        reasons = (
            (Reason.ROLLED_BACK, taken_back),
            (Reason.NOT_SUPPORTED, lacking),
            (Reason.STORAGE_CLASS_DIFFERS, kept),
        )
        problems = (
            Problem(resource=cluster.key, reason=reason, message=message)
            for reason, message in reasons
            if message
        )
        return found, tuple(problems)

    async def _wait_for_former(self, cluster: Cluster) -> tuple[Waiting, ...]:
        remains = await self._identities.remains(cluster)
        if not remains or cluster.metadata.deletion_timestamp:
            return ()
        message = f"a former Cluster with this name is being deleted: {', '.join(remains)}"
        return (Waiting(resource=cluster.key, reason=Reason.WAITING_FOR_FORMER, message=message),)

    async def observe(self, cluster: Cluster) -> Observed:
        """See BrokerBackend."""
        memory = self._memories.setdefault(cluster.key, _Memory())
        identity = await self._identities.load(cluster)
        seen = self._seen(cluster, identity)
        if identity is not None and begins_anew(cluster, identity, seen.pods):
            identity = None
        memory.identity = identity
        if identity is None:
            return Observed()
        # Use the identity that this pass will store. Otherwise a pass could report ready what the
        # next one restarts for its image or rack, and a plan could not show that restart.
        wanted = identity.at_version(cluster.spec.version, cluster.spec.image, self._image)
        wanted = await self._tools.zones.placed(cluster, wanted)
        losses = await self._losses.look(cluster, wanted, seen.pods)
        hindered = await self._unstarted.look(cluster, wanted, seen)
        unpublished = await self._published.look(cluster, seen)
        brokers = tuple(
            replace(
                with_hindrance(
                    observed_broker(cluster, wanted, node, seen), hindered.get(node.node_id)
                ),
                loss=losses.get(node.node_id),
            )
            for node in wanted.nodes
        )
        balance = await self._balance(cluster, identity, memory)
        joining = [each.node_id for each in identity.nodes if each.is_joining and each.is_broker]
        if joining and balance is None and not memory.pending:
            names = ", ".join(map(str, joining))
            asked = f"broker {names} joined: replicas are asked for when all brokers are there"
            memory.pending = (asked,)
        return Observed(
            cluster=ObservedCluster(
                cluster_id=identity.cluster_id,
                bootstrap_servers=self.bootstrap_servers(cluster),
                brokers=brokers,
                has_live_config=True,
                out_of_sync_since=dict(memory.out_of_sync_since),
                pending=(*unpublished, *memory.pending),
                balance=balance,
                is_formed=identity.is_formed,
            )
        )

    async def perform(
        self, actions: Sequence[Action], desired: Desired, observed: Observed
    ) -> tuple[Failure, ...]:
        """See BrokerBackend."""
        cluster = desired.cluster
        if cluster is None or cluster.key in desired.deleted or cluster.spec.paused:
            return ()
        memory = self._memories.setdefault(cluster.key, _Memory())
        _remember(memory, observed)
        await self._unstarted.wake(cluster)
        await self._published.wake(cluster)
        identity = await self._identities.load(cluster)
        is_held = _is_held_back(cluster)
        described = as_described(cluster, identity) if is_held else None
        one = BrokersPass(
            self._tools,
            described or (with_listeners_kept(cluster, identity) if is_held else cluster),
            identity,
            self._image,
            pods=self._seen(cluster).pods,
            is_taken_back=memory.is_taken_back,
        )
        if is_held:
            failures = await one.keep(has_pools=described is not None)
        else:
            failures = await one.run(actions, observed, memory.listeners)
            memory.identity = one.identity
        memory.pending = tuple(one.pending)
        return failures

    def status(self, cluster: Cluster, observed: Observed, plan: Plan) -> Mapping[str, Any]:
        """See BrokerBackend."""
        brokers = observed.cluster.brokers if observed.cluster else ()
        pools = {pool.name for pool in cluster.spec.pools} | {broker.pool for broker in brokers}
        status: dict[str, Any] = {
            "brokers": sum(pool.replicas for pool in cluster.spec.pools if "broker" in pool.roles),
            "readyBrokers": sum(
                broker.is_registered and broker.is_ready
                for broker in brokers
                if "broker" in broker.roles
            ),
            "pools": [
                {
                    "name": name,
                    "nodeIds": sorted(each.node_id for each in brokers if each.pool == name),
                    "ready": sum(
                        each.is_registered and each.is_ready
                        for each in brokers
                        if each.pool == name
                    ),
                }
                for name in sorted(pools)
            ],
        }
        if observed.cluster is not None and observed.cluster.cluster_id:
            status["clusterId"] = observed.cluster.cluster_id
        internal = next((each for each in cluster.spec.listeners if each.type == "Internal"), None)
        if internal is not None:
            host = f"{bootstrap_service(cluster)}.{cluster.metadata.namespace}.svc"
            status["bootstrapServers"] = f"{host}:{internal.port}"
        if plan.proposed:
            status["plan"] = {
                "hash": plan.hash,
                "actions": [action.describe()[:4096] for action in plan.proposed[:200]],
            }
        return status

    def forget(self, cluster: Cluster) -> None:
        """See BrokerBackend."""
        self._memories.pop(cluster.key, None)
        self._unstarted.forget(cluster)
        self._published.forget(cluster)
        self._identities.forget(cluster)

    def _seen(self, cluster: Cluster, identity: Identity | None = None) -> Seen:
        namespace, labels = cluster.metadata.namespace, selector(cluster)
        # Pods and sets of a former Cluster with the same name may still be terminating.
        sets = [
            each
            for each in self._store.list("StatefulSet", namespace, labels)
            if is_owned(each, cluster.metadata.uid)
        ]
        owners = [each["metadata"]["uid"] for each in sets]
        return Seen(
            now=dt.datetime.now(dt.UTC),
            stateful_sets={each["metadata"]["name"]: each for each in sets},
            pods={
                each["metadata"]["name"]: each
                for each in self._store.list("Pod", namespace, labels)
                if is_owned(each, *owners)
            },
            services={
                each["metadata"]["name"]: each
                for each in self._store.list("Service", namespace, labels)
                if is_owned(each, cluster.metadata.uid)
            },
            claims={
                pod_name(cluster, node): claim_uids(self._identities.claims_of(cluster, node))
                for node in (identity.nodes if identity else ())
            },
        )

    async def _balance(
        self, cluster: Cluster, identity: Identity, memory: _Memory
    ) -> Mapping[TopicPartition, tuple[int, ...]] | None:
        """Ask for the new brokers' share, once all brokers are present."""
        if not memory.is_whole or not any(node.is_joining for node in identity.nodes):
            return None
        pods = self._seen(cluster).pods
        addresses = [
            f"http://{host}:{HTTP_PORT}"
            for node in identity.nodes
            if (pod := pods.get(pod_name(cluster, node)))
            and (host := pod.get("status", {}).get("podIP"))
        ]
        try:
            planned = await asyncio.to_thread(fetch_plan, addresses)
        except BalanceError as error:
            memory.pending = (f"brokers that joined get no replicas yet: {error}",)
            return None
        reordered = {(each.topic, each.partition): each.replicas for each in planned.leader_moves}
        return reordered | {(each.topic, each.partition): each.to for each in planned.moves}


def _is_held_back(cluster: Cluster) -> bool:
    """Whether brokers stay as they are: the spec waits for approval, or they could not serve it.

    It is not rendered then: a pod that exits by itself would restart with it.
    """
    spec = cluster.spec
    if spec.update_policy == "Plan" and spec.approved_plan != target_of(cluster):
        return True
    return unsafe(cluster) is not None or bool(cluster_spec_problems(cluster))


def _remember(memory: _Memory, observed: Observed) -> None:
    """Record since when partitions are under-replicated, and whether all brokers answer."""
    seen = observed.cluster
    if seen is None or not seen.is_reachable:
        memory.is_whole = False
        return
    memory.is_whole = all(broker.is_registered for broker in seen.brokers)
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    memory.out_of_sync_since = {
        key: memory.out_of_sync_since.get(key, now)
        for key, partition in seen.partitions.items()
        if partition.is_under_replicated
    }
