"""Plans another replication factor for an existing topic. Pure; equal input gives equal moves.

A partition gets new replicas on the brokers with the fewest, in racks that it does not use yet. It
gives up out-of-sync replicas first, so the remaining ones are in sync. The Cluster sets how many
partitions move at once, and how fast. A leader never requires more in-sync replicas than there are
replicas, so fewer of them make no write fail.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from headrace_operator.plan.actions import ChangeReplicationFactor
from headrace_operator.plan.cordons import drained_brokers
from headrace_operator.plan.model import Problem, Waiting
from headrace_operator.plan.moves import new_throttle
from headrace_operator.resources import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace_operator.plan.model import (
        Observed,
        ObservedCluster,
        ObservedPartition,
        ObservedTopic,
        TopicPartition,
    )
    from headrace_operator.resources import Cluster, Topic

__all__ = ["plan_factor"]

WAITS_SHOWN = 3


def plan_factor(
    topic: Topic, existing: ObservedTopic, observed: Observed, cluster: Cluster, room: int
) -> Iterator[ChangeReplicationFactor | Problem | Waiting]:
    """Plan the next moves towards `spec.replicas`, or say what they wait for.

    `room`: how many partitions may still begin to move. Removing replicas copies nothing, and needs
    none.
    """
    wanted, seen = topic.spec.replicas, observed.cluster
    if wanted is None or seen is None:
        return
    different = _different(topic, existing, seen, wanted)
    if not different:
        yield from _under_way(topic, existing, seen, wanted)
        yield from _surplus(topic, existing, seen, wanted)
        return
    racks = _able(seen)
    if wanted > len(racks):
        yield _too_few(topic, wanted, len(racks), cluster)
        return
    if cluster.spec.moves.paused:
        message = f"spec.moves.paused: new replicas of {len(different)} partitions wait"
        yield Waiting(resource=topic.key, reason=Reason.PAUSED, message=message)
        return
    load = Counter(node_id for each in seen.partitions.values() for node_id in each.replicas)
    moves: dict[TopicPartition, tuple[int, ...]] = {}
    copies, waits = 0, []
    for key, partition in different.items():
        is_raised = len(partition.replicas) < wanted
        if partition.leader < 0:
            waits.append(f"{key[0]}-{key[1]} has no leader")
        elif not is_raised and len(partition.in_sync) < wanted:
            waits.append(f"{key[0]}-{key[1]} is not in sync")
        elif is_raised and copies >= room:
            waits.append(f"{key[0]}-{key[1]} waits for others that move")
        else:
            copies += is_raised
            moves[key] = _replicas(partition, wanted, racks, load)
    if moves:
        yield ChangeReplicationFactor(
            resource=topic.key,
            moves=moves,
            leaving=(),
            throttle=new_throttle(cluster, seen) if copies else None,
            topic=topic.topic_name,
            replicas=wanted,
            current=existing.replicas,
            copies=copies,
        )
    if waits:
        shown = waits[:WAITS_SHOWN]
        if len(waits) > WAITS_SHOWN:
            shown.append(f"and {len(waits) - WAITS_SHOWN} more")
        message = f"spec.replicas is {wanted}: {'; '.join(shown)}"
        yield Waiting(resource=topic.key, reason=Reason.RECONCILING, message=message)


def _different(
    topic: Topic, existing: ObservedTopic, seen: ObservedCluster, wanted: int
) -> dict[TopicPartition, ObservedPartition]:
    """Return the partitions that need another number of replicas and are not moving already.

    Brokers learn of the end of a move at different times, so for a moment a partition seems to have
    its old replicas beside the new ones. So replicas are removed only if the spec has changed.
    """
    is_changed = topic.metadata.generation != topic.status.reconciled_generation
    drained = drained_brokers(seen)
    found = {}
    for index in range(existing.partitions):
        key = (topic.topic_name, index)
        partition = seen.partitions.get(key)
        if partition is None or key in seen.reassigning:
            continue
        count = len(partition.replicas)
        is_surplus = count > wanted and drained.isdisjoint(partition.replicas)
        if count < wanted or (is_surplus and is_changed):
            found[key] = partition
    return found


def _under_way(
    topic: Topic, existing: ObservedTopic, seen: ObservedCluster, wanted: int
) -> Iterator[Waiting]:
    """Wait for partitions that get more replicas, but not for those that only get other ones."""
    coming = 0
    for index in range(existing.partitions):
        key = (topic.topic_name, index)
        if key in seen.reassigning and key in seen.partitions:
            before = len(seen.partitions[key].replicas) - len(seen.adding.get(key, ()))
            coming += before < wanted
    if coming:
        message = f"spec.replicas is {wanted}: replicas of {coming} partitions are on their way"
        yield Waiting(resource=topic.key, reason=Reason.RECONCILING, message=message)


def _surplus(
    topic: Topic, existing: ObservedTopic, seen: ObservedCluster, wanted: int
) -> Iterator[Problem]:
    """Report that another client gave the topic more replicas: they are left alone."""
    if existing.replicas > wanted and not any(
        (topic.topic_name, index) in seen.reassigning for index in range(existing.partitions)
    ):
        message = (
            f"the topic has {existing.replicas} replicas and the spec says {wanted}: those of"
            " somebody else are left alone while the spec does not change"
        )
        yield Problem(
            resource=topic.key, reason=Reason.DRIFT_REPORTED, message=message, is_stalling=False
        )


def _able(seen: ObservedCluster) -> dict[int, str | None]:
    """Return the brokers that may get replicas, with their racks."""
    drained = drained_brokers(seen)
    return {
        each.node_id: each.rack
        for each in seen.brokers
        if each.is_registered and "broker" in each.roles and each.node_id not in drained
    }


def _too_few(topic: Topic, wanted: int, able: int, cluster: Cluster) -> Problem | Waiting:
    planned = sum(pool.replicas for pool in cluster.spec.pools if "broker" in pool.roles)
    if wanted <= planned:
        message = f"{wanted} replicas need {wanted} brokers; {able} can have some now"
        return Waiting(resource=topic.key, reason=Reason.WAITING_FOR_BROKERS, message=message)
    message = (
        f"{wanted} replicas need {wanted} brokers and the cluster has {planned};"
        " lower spec.replicas or give a pool more replicas"
    )
    return Problem(resource=topic.key, reason=Reason.TOO_FEW_BROKERS, message=message)


def _replicas(
    partition: ObservedPartition,
    wanted: int,
    racks: Mapping[int, str | None],
    load: Counter[int],
) -> tuple[int, ...]:
    """Return the partition's replicas with some added, or without some; counts them in `load`."""
    replicas = list(partition.replicas)
    while len(replicas) > wanted:
        gone = max(
            replicas[1:] if replicas[0] in partition.in_sync else replicas,
            key=lambda node_id: (
                node_id not in partition.in_sync,
                _shares_rack(node_id, replicas, racks),
                load[node_id],
                node_id,
            ),
        )
        replicas.remove(gone)
        load[gone] -= 1
    while len(replicas) < wanted:
        joining = min(
            (node_id for node_id in racks if node_id not in replicas),
            key=lambda node_id: (
                _shares_rack(node_id, replicas, racks),
                load[node_id],
                node_id,
            ),
        )
        replicas.append(joining)
        load[joining] += 1
    return tuple(replicas)


def _shares_rack(node_id: int, replicas: list[int], racks: Mapping[int, str | None]) -> bool:
    rack = racks.get(node_id)
    return rack is not None and any(racks.get(each) == rack for each in replicas if each != node_id)
