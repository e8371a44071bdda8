"""Plans the end of brokers that no pool wants. Pure.

First they are cordoned, then their replicas move, then they lose their vote (`voters`), then they
stop. Nothing is stopped that is still needed: not a broker with replicas, not a voter of the
metadata quorum. What cannot be done safely is a problem that says why, and leaves everything as it
is. Where fewer brokers are left than a topic has replicas, it gets fewer only if nobody said
otherwise: neither its Topic, nor its min.insync.replicas, nor the cluster's settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_operator.plan.actions import StartBroker, StopBroker
from headrace_operator.plan.cordons import plan_cordons
from headrace_operator.plan.drain import plan_drain
from headrace_operator.plan.model import Problem, Waiting
from headrace_operator.plan.moves import next_moves
from headrace_operator.plan.voters import wanted_voters
from headrace_operator.resources import Reason

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from headrace_operator.plan.model import (
        Action,
        Desired,
        Observed,
        ObservedBroker,
        ObservedCluster,
        ObservedPartition,
        TopicPartition,
    )
    from headrace_operator.resources import Cluster

__all__ = ["plan_removal"]

#: The brokers' own topics: as many replicas as there can be.
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
#: Settings of the cluster that ask for so many brokers.
COUNTED_SETTINGS = (
    "min.insync.replicas",
    "default.replication.factor",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
)


def plan_removal(
    observed: Observed,
    desired: Desired,
    surplus: Sequence[ObservedBroker],
    config: Mapping[str, str],
) -> Iterator[Action | Problem | Waiting]:
    """Plan the removal of these brokers."""
    seen, cluster = observed.cluster, desired.cluster
    if seen is None or cluster is None:
        return
    leaving = {broker.node_id for broker in surplus}
    if surplus and not seen.is_reachable:
        # What they hold is not known: only a start is safe.
        yield from _starts(cluster, surplus, config)
        names = _names([broker for broker in surplus if broker.is_running])
        message = f"{names} is looked at when the brokers answer"
        yield Waiting(resource=cluster.key, reason=Reason.WAITING_FOR_BROKERS, message=message)
        return
    refusal = _refusal(seen, cluster, surplus)
    if refusal is not None:
        yield refusal
        yield from plan_cordons(cluster, seen, (), leaving)
        return
    yield from _starts(cluster, surplus, config)
    for broker in surplus:
        if not broker.is_running or broker.replicas:
            continue
        if _votes(seen, broker):
            message = f"broker {broker.node_id} has no replicas; it stops when it votes no more"
            yield Waiting(resource=cluster.key, reason=Reason.WAITING_FOR_VOTERS, message=message)
        else:
            yield StopBroker(resource=cluster.key, node_id=broker.node_id, pool=broker.pool)
    full = [broker for broker in surplus if broker.is_running and broker.replicas]
    drain = list(_drain(observed, desired, surplus, full)) if full else []
    is_refused = any(isinstance(each, Problem) for each in drain)
    draining = () if is_refused else [broker.node_id for broker in full]
    yield from plan_cordons(cluster, seen, draining, leaving)
    yield from drain


def _starts(
    cluster: Cluster, surplus: Sequence[ObservedBroker], config: Mapping[str, str]
) -> Iterator[StartBroker]:
    """Start those that do not run: only they can say, and give away, what they hold."""
    for broker in surplus:
        if not broker.is_running:
            yield StartBroker(
                resource=cluster.key,
                node_id=broker.node_id,
                pool=broker.pool,
                roles=broker.roles,
                config=config,
            )


def _refusal(
    seen: ObservedCluster, cluster: Cluster, surplus: Sequence[ObservedBroker]
) -> Problem | None:
    """Keep the brokers where nobody who stays could vote in the metadata quorum."""
    voters = [broker for broker in surplus if _votes(seen, broker)]
    staying = [broker for broker in seen.brokers if broker not in surplus]
    if not voters or (seen.quorum is not None and wanted_voters(cluster, staying, seen.quorum)):
        return None
    if seen.quorum is None and any("controller" in broker.roles for broker in staying):
        # Brokers that do not answer now will say who votes when they do.
        return None
    return _refused(
        cluster,
        f"{_names(voters)} votes in the metadata quorum and nobody that stays can: keep it, or let"
        " a pool with the role controller have new brokers first",
    )


def _votes(seen: ObservedCluster, broker: ObservedBroker) -> bool:
    """Whether a broker votes; a controller does as long as nothing else is known."""
    if seen.quorum is None:
        return "controller" in broker.roles
    return seen.quorum.votes(broker.node_id)


def _drain(
    observed: Observed,
    desired: Desired,
    surplus: Sequence[ObservedBroker],
    full: Sequence[ObservedBroker],
) -> Iterator[Action | Problem | Waiting]:
    seen, cluster = observed.cluster, desired.cluster
    if seen is None or cluster is None:
        return
    leaving = {broker.node_id for broker in surplus}
    staying = {
        broker.node_id: broker.rack
        for broker in seen.brokers
        if broker.is_registered and "broker" in broker.roles and broker.node_id not in leaving
    }
    kept = _kept_topics(observed, desired, len(staying))
    moving = seen.reassigning | _just_moved(seen.partitions, len(staying), kept)
    drain = plan_drain(seen.partitions, leaving, staying, moving=moving, kept=kept)
    if drain.refusals and not desired.is_complete:
        message = f"{_names(full)} is looked at again with all Topics: {drain.refusal}"
        yield Waiting(resource=cluster.key, reason=Reason.WAITING_FOR_DRAIN, message=message)
        return
    if drain.refusals:
        yield _refused(cluster, f"{_names(full)} cannot be drained: {drain.refusal}")
        return
    yield from next_moves(cluster, seen, drain.moves, tuple(sorted(leaving)))
    for broker in full:
        message = f"broker {broker.node_id} still has {broker.replicas} replicas; they move away"
        if not broker.is_registered:
            why = f": {broker.failing}" if broker.failing else ""
            message = f"broker {broker.node_id} is down{why}; {message}"
        yield Waiting(resource=cluster.key, reason=Reason.WAITING_FOR_DRAIN, message=message)


def _kept_topics(observed: Observed, desired: Desired, left: int) -> Mapping[str, str]:
    """Say of each topic with more replicas than brokers are left why it must keep them.

    Topics that may get fewer are not in it.
    """
    seen, cluster = observed.cluster, desired.cluster
    if seen is None or cluster is None:
        return {}
    large = {topic for (topic, _), each in seen.partitions.items() if len(each.replicas) > left}
    if not large:
        return {}
    for name in COUNTED_SETTINGS:
        value = str(cluster.spec.config.get(name, "")).strip()
        if value.isdigit() and int(value) > left:
            return dict.fromkeys(large, f"and spec.config says {name}: {value}")
    reasons = {}
    manifests = {topic.topic_name: topic for topic in desired.topics}
    for name in large - INTERNAL_TOPICS:
        manifest = manifests.get(name)
        config = observed.topics[name].config if name in observed.topics else {}
        in_sync = config.get("min.insync.replicas", "")
        if manifest is None:
            reasons[name] = "and no Topic says that fewer are enough: lower them by hand"
        elif manifest.spec.replicas is not None and manifest.spec.replicas > left:
            reasons[name] = f"and its Topic says replicas: {manifest.spec.replicas}"
        elif in_sync.isdigit() and int(in_sync) > left:
            reasons[name] = f"and it has min.insync.replicas {in_sync}"
    return reasons


def _just_moved(
    partitions: Mapping[TopicPartition, ObservedPartition], left: int, kept: Collection[str]
) -> set[TopicPartition]:
    """Return partitions with more replicas than others of their topic.

    Brokers learn the end of a move one after the other, so the one that was asked for partitions
    may still have the old replicas beside the new ones when the controller lists no move any more.
    Partitions that are to have fewer replicas are asked for that again: it changes nothing twice.
    """
    least: dict[str, int] = {}
    for (topic, _), partition in partitions.items():
        count = len(partition.replicas)
        least[topic] = min(least.get(topic, count), count)
    return {
        key
        for key, each in partitions.items()
        if len(each.replicas) > least[key[0]]
        and (len(each.replicas) <= left or key[0] in kept or least[key[0]] > left)
    }


def _refused(cluster: Cluster, message: str) -> Problem:
    return Problem(resource=cluster.key, reason=Reason.DRAIN_REFUSED, message=message)


def _names(brokers: Sequence[ObservedBroker]) -> str:
    return "broker " + ", ".join(str(broker.node_id) for broker in brokers)
