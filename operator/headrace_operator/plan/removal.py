"""Plans the removal of brokers that no pool wants. Pure.

First they are cordoned, then their replicas move, then they lose their vote (`voters`), then they
stop. One without replicas is cordoned first, too: topics may be created meanwhile. A broker that is
still needed is not stopped: neither one with replicas nor a voter of the metadata quorum. An unsafe
removal becomes a problem with the reason, and nothing changes. If fewer brokers remain than a topic
has replicas, the topic gets fewer, unless its Topic, its min.insync.replicas or the cluster's
settings require the number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_operator.plan.actions import StartBroker, StopBroker
from headrace_operator.plan.cordons import drained_brokers, plan_cordons
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
    from headrace_operator.plan.pools import ComparedPools
    from headrace_operator.resources import Cluster

__all__ = ["plan_removal"]

#: The internal topics: they get as many replicas as possible.
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
#: Cluster settings that require this many brokers.
COUNTED_SETTINGS = (
    "min.insync.replicas",
    "default.replication.factor",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
    "share.coordinator.state.topic.replication.factor",
    "share.coordinator.state.topic.min.isr",
)


def plan_removal(
    observed: Observed,
    desired: Desired,
    pools: ComparedPools,
    config: Mapping[str, str],
) -> Iterator[Action | Problem | Waiting]:
    """Plan the removal of the brokers that no pool wants."""
    seen, cluster, surplus = observed.cluster, desired.cluster, pools.surplus
    if seen is None or cluster is None:
        return
    leaving = {broker.node_id for broker in surplus}
    if surplus and not seen.is_reachable:
        # Their replicas are not known: only a start is safe.
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
        elif _may_get_replicas(seen, broker):
            message = (
                f"broker {broker.node_id} has no replicas; it stops when it gets none any more"
            )
            yield Waiting(resource=cluster.key, reason=Reason.WAITING_FOR_DRAIN, message=message)
        else:
            yield StopBroker(
                resource=cluster.key,
                node_id=broker.node_id,
                pool=broker.pool,
                successor=pools.successors.get(broker.node_id),
            )
    full = [broker for broker in surplus if broker.is_running and broker.replicas]
    drain = list(_drain(observed, desired, surplus, full)) if full else []
    is_refused = any(isinstance(each, Problem) for each in drain)
    draining = {
        broker.node_id
        for broker in surplus
        if broker.is_running and not (is_refused and broker.replicas)
    }
    yield from plan_cordons(cluster, seen, draining, leaving)
    yield from drain


def _may_get_replicas(seen: ObservedCluster, broker: ObservedBroker) -> bool:
    """Whether a topic that is created now may have replicas there."""
    if seen.live_config is None or not broker.is_registered or "broker" not in broker.roles:
        return False
    return broker.node_id not in drained_brokers(seen)


def _starts(
    cluster: Cluster, surplus: Sequence[ObservedBroker], config: Mapping[str, str]
) -> Iterator[StartBroker]:
    """Start stopped ones: only a running broker can report and move its replicas."""
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
    """Keep the brokers if no remaining node could vote in the metadata quorum."""
    voters = [broker for broker in surplus if _votes(seen, broker)]
    staying = [broker for broker in seen.brokers if broker not in surplus]
    if not voters or (seen.quorum is not None and wanted_voters(cluster, staying, seen.quorum)):
        return None
    if seen.quorum is None and any("controller" in broker.roles for broker in staying):
        # Brokers that do not answer now will report the voters when they do.
        return None
    return _refused(
        cluster,
        f"{_names(voters)} votes in the metadata quorum and nobody that stays can: keep it, or let"
        " a pool with the role controller have new brokers first",
    )


def _votes(seen: ObservedCluster, broker: ObservedBroker) -> bool:
    """Whether a broker votes; a controller counts as voter while the quorum is unknown."""
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
    """Return why each topic with more replicas than remaining brokers must keep them.

    Topics that may get fewer replicas are left out.
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

    Brokers learn of the end of a move at different times, so the broker that was asked may still
    report old replicas beside the new ones when the controller lists no move any longer. For
    partitions that get fewer replicas the same change is then requested again, which has no effect.
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
