"""Brokers that start again with new volumes, at a user's request. Pure.

The broker keeps its id and its place, and its replicas are copied from the other brokers once. So
none of its data may exist only there, and no other broker may be down or lagging meanwhile.
Whatever would be lost, or would refuse writes, is named, and the broker waits. One broker at a
time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_operator.plan.actions import RefillBroker
from headrace_operator.plan.model import Problem, Waiting
from headrace_operator.plan.rolling import without_reserve
from headrace_operator.resources import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_operator.plan.model import (
        Observed,
        ObservedBroker,
        ObservedCluster,
        ObservedPartition,
        TopicPartition,
    )
    from headrace_operator.resources import Cluster
    from headrace_operator.resources.cluster import VolumeReplacement

__all__ = ["plan_refills"]

SHOWN = 3


def plan_refills(
    observed: Observed, cluster: Cluster
) -> Iterator[RefillBroker | Problem | Waiting]:
    """Plan `spec.replaceVolumes`: the next broker, or why it cannot be replaced yet."""
    seen = observed.cluster
    if seen is None:
        return
    brokers = {broker.node_id: broker for broker in seen.brokers}
    begun = [broker.node_id for broker in seen.brokers if broker.is_refilling]
    for broker in seen.brokers:
        if broker.is_refilling:
            yield _wait(cluster, _progress(seen, broker))
    for request in cluster.spec.replace_volumes:
        asked = brokers.get(request.broker)
        if asked is None or asked.replacement == request.request_id:
            continue
        title = f"new volumes for broker {asked.node_id} ({request.request_id})"
        if problem := _refusal(seen, asked):
            message = f"{title}: {problem}"
            yield Problem(resource=cluster.key, reason=Reason.REPLACEMENT_REFUSED, message=message)
            continue
        blockers = [f"broker {each} comes first" for each in begun]
        blockers = blockers or list(_blockers(observed, seen, asked))
        if blockers:
            more = [f"and {len(blockers) - SHOWN} more"] if len(blockers) > SHOWN else []
            yield _wait(cluster, f"{title} wait: {'; '.join(blockers[:SHOWN] + more)}")
        else:
            yield _refill(cluster, seen, request)
        begun.append(asked.node_id)


def _refill(cluster: Cluster, seen: ObservedCluster, request: VolumeReplacement) -> RefillBroker:
    mine = _partitions_of(seen, request.broker)
    sizes = [seen.sizes.get(key, {}).get(partition.leader, 0) for key, partition in mine.items()]
    return RefillBroker(
        resource=cluster.key,
        node_id=request.broker,
        request_id=request.request_id,
        partitions=len(mine),
        bytes_=sum(sizes) if seen.sizes or not mine else None,
    )


def _refusal(seen: ObservedCluster, broker: ObservedBroker) -> str:
    """Return what a user has to change first; '' if waiting is enough."""
    if broker.ordinal is None:
        return "this machine's brokers have none: stop it, and delete its directory"
    only = [
        f"{topic}-{index}"
        for (topic, index), partition in _partitions_of(seen, broker.node_id).items()
        if len(partition.replicas) == 1
    ]
    if only:
        more = f" and {len(only) - SHOWN} more" if len(only) > SHOWN else ""
        return (
            f"{', '.join(only[:SHOWN])}{more} has its only replica there, which would be lost: give"
            f" it more, or move it away (`headrace cluster drain {broker.node_id}`)"
        )
    voters = [each.node_id for each in seen.quorum.voters] if seen.quorum else []
    if voters == [broker.node_id]:
        return "it alone votes in the metadata quorum, which would be lost: more brokers first"
    return ""


def _blockers(observed: Observed, seen: ObservedCluster, broker: ObservedBroker) -> Iterator[str]:
    if not seen.is_reachable:
        yield "the brokers do not answer"
        return
    if seen.quorum is None:
        yield "nobody leads the metadata quorum"
    elif seen.quorum.votes(broker.node_id):
        voters = {voter.node_id for voter in seen.quorum.voters}
        left = [
            each
            for each in seen.brokers
            if each.node_id in voters - {broker.node_id} and each.is_registered
        ]
        if 2 * len(left) <= len(voters):
            yield "without it the voters that answer are no majority of the metadata quorum"
    for each in seen.brokers:
        if each.node_id != broker.node_id and not (each.is_registered and each.is_ready):
            yield f"broker {each.node_id} is not ready"
    if seen.reassigning:
        yield f"replicas of {len(seen.reassigning)} partitions move"
    for (topic, index), partition in _partitions_of(seen, broker.node_id).items():
        behind = set(partition.replicas) - set(partition.in_sync) - {broker.node_id}
        if behind or partition.leader < 0:
            listed = ", ".join(map(str, sorted(behind)))
            yield f"{topic}-{index} is not in sync on broker {listed or 'any'}"
    if broker.is_registered:
        # If it is down already, its absence makes no further writes fail.
        yield from without_reserve(observed, seen, broker)


def _progress(seen: ObservedCluster, broker: ObservedBroker) -> str:
    title = f"broker {broker.node_id} begins again with new volumes"
    if broker.succeeds is not None:
        title = f"broker {broker.node_id} begins in the place of broker {broker.succeeds}"
    if broker.failing:
        return f"{title}: {broker.failing}"
    if not broker.is_registered:
        return title
    mine = _partitions_of(seen, broker.node_id)
    missing = {key: each for key, each in mine.items() if broker.node_id not in each.in_sync}
    left = sum(
        max(0, sizes.get(partition.leader, 0) - sizes.get(broker.node_id, 0))
        for key, partition in missing.items()
        for sizes in [seen.sizes.get(key, {})]
    )
    size = f", {left} bytes" if seen.sizes else ""
    return f"{title}: {len(missing)} of {len(mine)} partitions are left to fill{size}"


def _partitions_of(seen: ObservedCluster, node_id: int) -> dict[TopicPartition, ObservedPartition]:
    return {key: each for key, each in sorted(seen.partitions.items()) if node_id in each.replicas}


def _wait(cluster: Cluster, message: str) -> Waiting:
    return Waiting(resource=cluster.key, reason=Reason.WAITING_FOR_BROKERS, message=message)
