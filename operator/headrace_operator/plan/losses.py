"""Brokers whose node is gone: what they wait for, how to help, which volumes to replace.

A volume is given up only if the node that it is bound to no longer exists, the pool allows it, and
no data of the broker exists only there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_operator.plan.actions import ReplaceVolumes
from headrace_operator.plan.model import Action, Waiting
from headrace_operator.resources import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_operator.plan.model import (
        NodeLoss,
        Observed,
        ObservedBroker,
        ObservedCluster,
    )
    from headrace_operator.resources import Cluster

__all__ = ["plan_losses"]

RISKS_SHOWN = 3


def plan_losses(observed: Observed, cluster: Cluster) -> Iterator[Action | Waiting]:
    """Report which broker waits for which node; replace volumes where that is allowed."""
    seen = observed.cluster
    if seen is None:
        return
    policies = {pool.name: pool.storage.lost_node_policy for pool in cluster.spec.pools}
    waits: list[str] = []
    for broker in seen.brokers:
        loss = broker.loss
        if loss is None:
            continue
        if not (loss.is_gone and loss.volumes and policies.get(broker.pool) == "Replace"):
            waits.append(f"{_where(broker, loss)}; {_way_out(loss)}")
            continue
        risks = list(_risks(seen, broker))
        if risks:
            more = [f"and {len(risks) - RISKS_SHOWN} more"] if len(risks) > RISKS_SHOWN else []
            reasons = "; ".join(risks[:RISKS_SHOWN] + more)
            waits.append(f"{_where(broker, loss)}; it is not replaced: {reasons}")
        else:
            yield ReplaceVolumes(
                resource=cluster.key,
                node_id=broker.node_id,
                machine=loss.machine,
                volumes=loss.volumes,
            )
    if waits:
        # One for all: a condition says the first of what is waited for.
        yield _wait(cluster, "; ".join(waits))


def _risks(seen: ObservedCluster, broker: ObservedBroker) -> Iterator[str]:
    """Name the data that would be lost, or whose copies are unknown."""
    if not seen.is_reachable:
        yield "the other brokers do not answer"
        return
    if broker.is_registered:
        yield "the brokers count it as one of them still"
    if seen.quorum is None:
        yield "nobody leads the metadata quorum"
    serving = {each.node_id for each in seen.brokers if each.is_registered} - {broker.node_id}
    for (topic, index), partition in sorted(seen.partitions.items()):
        if broker.node_id not in partition.replicas:
            continue
        if partition.leader not in serving or not serving & set(partition.in_sync):
            yield f"the last copy of {topic}-{index} that was in sync may be there"


def _where(broker: ObservedBroker, loss: NodeLoss) -> str:
    volumes = f" with its volume {', '.join(loss.volumes)}" if loss.volumes else ""
    return (
        f"broker {broker.node_id} (pod {broker.address}) waits for node {loss.machine}{volumes}:"
        f" {loss.reason}"
    )


def _way_out(loss: NodeLoss) -> str:
    if loss.is_cordoned:
        return "uncordon it, or give the volume up: delete the claim, then the pod"
    if not loss.is_gone:
        return "bring it back, or, where it is lost for good, delete the Node"
    return (
        "bring it back, or give the volume up, and the broker is filled by the others: delete the"
        " claim, then the pod; storage.lostNodePolicy: Replace does so where nothing is lost by it"
    )


def _wait(cluster: Cluster, message: str) -> Waiting:
    return Waiting(resource=cluster.key, reason=Reason.WAITING_FOR_BROKERS, message=message)
