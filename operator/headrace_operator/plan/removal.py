"""Plans the end of brokers that no pool wants: first their replicas move, then they stop. Pure.

Nothing is stopped that is still needed: not a broker with replicas, not a voter of the metadata
quorum. What cannot be done safely is a problem that says why, and leaves everything as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_operator.plan.actions import MoveReplicas, StartBroker, StopBroker
from headrace_operator.plan.drain import plan_drain
from headrace_operator.plan.model import Problem, Waiting
from headrace_operator.resources import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace_operator.plan.model import (
        Action,
        Observed,
        ObservedBroker,
        ObservedPartition,
        TopicPartition,
    )
    from headrace_operator.resources import Cluster

__all__ = ["plan_removal"]

#: Partitions that move at the same time: copies share the disks and the network with clients.
MOVES_MAX = 50


def plan_removal(
    observed: Observed,
    cluster: Cluster,
    surplus: Sequence[ObservedBroker],
    config: Mapping[str, str],
) -> Iterator[Action | Problem | Waiting]:
    """Plan the removal of these brokers."""
    voters = [broker for broker in surplus if "controller" in broker.roles]
    if voters:
        yield _refused(
            cluster,
            f"{_names(voters)} votes in the metadata quorum, and voters stay: keep the pool as"
            " large as the cluster was formed with",
        )
        return
    for broker in surplus:
        if not broker.is_running:
            # Its replicas can only be asked for, and copied, while it runs.
            yield StartBroker(
                resource=cluster.key,
                node_id=broker.node_id,
                pool=broker.pool,
                roles=broker.roles,
                config=config,
            )
        elif not broker.replicas:
            yield StopBroker(resource=cluster.key, node_id=broker.node_id, pool=broker.pool)
    full = [broker for broker in surplus if broker.is_running and broker.replicas]
    if full:
        yield from _drain(observed, cluster, surplus, full)


def _drain(
    observed: Observed,
    cluster: Cluster,
    surplus: Sequence[ObservedBroker],
    full: Sequence[ObservedBroker],
) -> Iterator[Action | Problem | Waiting]:
    seen = observed.cluster
    if seen is None:
        return
    leaving = {broker.node_id for broker in surplus}
    staying = {
        broker.node_id: broker.rack
        for broker in seen.brokers
        if broker.is_registered and "broker" in broker.roles and broker.node_id not in leaving
    }
    moving = seen.reassigning | _just_moved(seen.partitions)
    drain = plan_drain(seen.partitions, leaving, staying, moving=moving)
    if drain.refusals:
        yield _refused(cluster, f"{_names(full)} cannot be drained: {drain.refusal}")
        return
    room = max(0, MOVES_MAX - len(seen.reassigning))
    new = list(drain.moves)[:room]
    if new:
        yield MoveReplicas(
            resource=cluster.key,
            moves={key: drain.moves[key] for key in new},
            leaving=tuple(sorted(leaving)),
        )
    for broker in full:
        message = f"broker {broker.node_id} still has {broker.replicas} replicas; they move away"
        yield Waiting(resource=cluster.key, reason=Reason.WAITING_FOR_DRAIN, message=message)


def _just_moved(partitions: Mapping[TopicPartition, ObservedPartition]) -> set[TopicPartition]:
    """Return partitions with more replicas than others of their topic.

    Brokers learn the end of a move one after the other, so the one that was asked for partitions
    may still have the old replicas beside the new ones when the controller lists no move any more.
    """
    least: dict[str, int] = {}
    for (topic, _), partition in partitions.items():
        count = len(partition.replicas)
        least[topic] = min(least.get(topic, count), count)
    return {key for key, each in partitions.items() if len(each.replicas) > least[key[0]]}


def _refused(cluster: Cluster, message: str) -> Problem:
    return Problem(resource=cluster.key, reason=Reason.DRAIN_REFUSED, message=message)


def _names(brokers: Sequence[ObservedBroker]) -> str:
    return "broker " + ", ".join(str(broker.node_id) for broker in brokers)
