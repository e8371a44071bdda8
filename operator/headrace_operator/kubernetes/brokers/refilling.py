"""Gives a broker new volumes: the old ones are recorded before any is deleted.

So it may be interrupted between any two requests, and is done once. Claim and pod are identified by
uid: objects that replaced them are left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from headrace_operator.kubernetes.brokers.identity import claim_uids
from headrace_operator.kubernetes.brokers.observed import is_ready
from headrace_operator.render.identity import Node, started, stopped
from headrace_operator.render.names import pod_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace_operator.kubernetes.api.transport import Object
    from headrace_operator.kubernetes.brokers.keeper import Refusals
    from headrace_operator.kubernetes.brokers.tools import Tools
    from headrace_operator.plan import ObservedCluster, RefillBroker, ReplaceVolumes
    from headrace_operator.render.identity import Identity
    from headrace_operator.resources import Cluster

__all__ = [
    "give_up",
    "may_give_up",
    "replace_volumes",
    "uids_of",
    "with_refills",
    "with_successor",
    "without_refilled",
]


def with_refills(
    cluster: Cluster,
    identity: Identity,
    actions: Sequence[RefillBroker],
    tools: Tools,
    pods: Mapping[str, Object],
) -> Identity:
    """Return the identity with these brokers' volumes to delete, without revoked requests."""
    asked = {(each.broker, each.request_id) for each in cluster.spec.replace_volumes}
    for node in identity.nodes:
        is_asked = node.succeeds is not None or (node.node_id, node.replacement) in asked
        if node.given_up and not is_asked:
            pod = pods.get(pod_name(cluster, node), {"metadata": {}})
            claims = tools.identities.claims_of(cluster, node)
            if not any(each["metadata"].get("deletionTimestamp") for each in [pod, *claims]):
                node_now = msgspec.structs.replace(node, replacement="", given_up=())
                identity = identity.replaced(node_now)
    for action in actions:
        known = identity.node(action.node_id)
        if known is None:
            continue
        uids = uids_of(cluster, known, tools, pods)
        identity = identity.replaced(
            msgspec.structs.replace(known, replacement=action.request_id, given_up=uids)
        )
    return identity


async def may_give_up(cluster: Cluster, node: Node, tools: Tools, refusals: Refusals) -> bool:
    """Whether the volumes of a broker may be deleted; it is recorded what is refused."""
    before = len(refusals.failures)
    for claim in tools.identities.claims_of(cluster, node):
        with refusals.recorded(claim):
            await tools.client.delete(claim, uid=claim["metadata"]["uid"], is_dry_run=True)
    return len(refusals.failures) == before


def with_successor(
    cluster: Cluster,
    identity: Identity,
    former: Node,
    node_id: int,
    given_up: tuple[str, ...],
) -> Identity:
    """Return it with another broker in the place of one that leaves, on volumes of its own."""
    asked = cluster.spec.replace_volumes
    node = Node(
        node_id=node_id,
        pool=former.pool,
        ordinal=former.ordinal,
        roles=former.roles,
        rack=former.rack,
        # The Services of the place stay.
        node_ports=former.node_ports,
        addresses=former.addresses,
        replacement=next((each.request_id for each in asked if each.broker == node_id), ""),
        given_up=given_up,
        succeeds=former.node_id,
    )
    return started(stopped(identity, former.node_id), node)


def uids_of(
    cluster: Cluster, node: Node, tools: Tools, pods: Mapping[str, Object]
) -> tuple[str, ...]:
    """Return what a broker has that is made anew: its volume claims and its pod."""
    live = pods.get(pod_name(cluster, node))
    uids = claim_uids(tools.identities.claims_of(cluster, node))
    return uids + ((str(live["metadata"]["uid"]),) if live is not None else ())


def without_refilled(
    cluster: Cluster, identity: Identity, seen: ObservedCluster, tools: Tools
) -> Identity:
    """Return the identity without completed requests: new volumes, and all replicas in sync."""
    ready = {each.node_id for each in seen.brokers if each.is_registered and each.is_ready}
    for node in identity.nodes:
        kept = set(node.given_up) & {
            each["metadata"]["uid"] for each in tools.identities.claims_of(cluster, node)
        }
        is_behind = any(
            node.node_id in each.replicas and node.node_id not in each.in_sync
            for each in seen.partitions.values()
        )
        if node.given_up and node.node_id in ready and not kept and not is_behind:
            pod = tools.store.get("Pod", cluster.metadata.namespace, pod_name(cluster, node))
            if pod is not None and pod["metadata"]["uid"] not in node.given_up:
                node_now = msgspec.structs.replace(node, given_up=(), succeeds=None)
                identity = identity.replaced(node_now)
    return identity


async def give_up(cluster: Cluster, identity: Identity, tools: Tools, refusals: Refusals) -> None:
    """Delete the recorded claims, and then the pod; its set recreates both."""
    for node in identity.nodes:
        if node.given_up:
            await _give_up(cluster, node, tools, refusals)


async def replace_volumes(
    cluster: Cluster,
    identity: Identity,
    actions: Sequence[ReplaceVolumes],
    tools: Tools,
    refusals: Refusals,
) -> None:
    """Delete claims whose node is gone, and their pending pods: the set recreates both."""
    for action in actions:
        node = identity.node(action.node_id)
        if node is None:
            continue
        for claim in tools.identities.claims_of(cluster, node):
            if claim["metadata"]["name"] in action.volumes:
                with refusals.recorded(claim):
                    await tools.client.delete(claim, uid=claim["metadata"]["uid"])
                    tools.keeper.forget(claim)
        pod = tools.store.get("Pod", cluster.metadata.namespace, pod_name(cluster, node))
        # A pod that is bound to the node is deleted with it.
        if pod is not None and not pod["spec"].get("nodeName"):
            with refusals.recorded(pod):
                await tools.client.delete(pod, uid=pod["metadata"]["uid"])


async def _give_up(cluster: Cluster, node: Node, tools: Tools, refusals: Refusals) -> None:
    before = len(refusals.failures)
    for claim in tools.identities.claims_of(cluster, node):
        metadata = claim["metadata"]
        if metadata["uid"] in node.given_up and not metadata.get("deletionTimestamp"):
            with refusals.recorded(claim):
                await tools.client.delete(claim, uid=metadata["uid"])
    pod = tools.store.get("Pod", cluster.metadata.namespace, pod_name(cluster, node))
    # If it were recreated with the same volumes, it would be deleted for nothing.
    if pod is None or len(refusals.failures) > before:
        return
    metadata = pod["metadata"]
    if metadata["uid"] not in node.given_up or metadata.get("deletionTimestamp"):
        return
    with refusals.recorded(pod):
        if is_ready(pod):
            # Respect the budget: another node may be drained right now. Retried if refused.
            await tools.client.evict(metadata["namespace"], metadata["name"], uid=metadata["uid"])
        else:
            await tools.client.delete(pod, uid=metadata["uid"])
