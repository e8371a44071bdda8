"""How fast replicas move, how many at once, and their progress: moves leave room for clients.

The throttle is a cluster-wide setting, set before the first move and removed after the last. No
topic settings are used, so a user's own reassignment is not affected, and nothing is left behind.
While moves are paused none begins; those in progress continue, as in a plan that a user has
approved. Pure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace_operator.plan.actions import AlterClusterConfig, MoveReplicas
from headrace_operator.plan.cordons import drained_brokers
from headrace_operator.plan.model import Waiting
from headrace_operator.resources import Reason
from headrace_operator.resources.quantities import parse_quantity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace_operator.plan.model import ObservedCluster, TopicPartition
    from headrace_operator.resources import Cluster

__all__ = [
    "MOVES_THROTTLE",
    "MovesProgress",
    "ends_throttle",
    "moves_left",
    "new_throttle",
    "next_moves",
    "plan_end_of_throttle",
    "plan_throttle",
    "progress_of",
]

MOVES_THROTTLE = "headrace.moves.throttle"


@dataclass(frozen=True, kw_only=True)
class MovesProgress:
    """The progress of moves. Bytes are None while no broker has reported replica sizes.

    `seconds_left`: at the throttle; None: there is no throttle, or the bytes are not known.
    """

    partitions_moving: int
    partitions_left: int
    bytes_left: int | None
    seconds_left: int | None


def next_moves(
    cluster: Cluster,
    seen: ObservedCluster,
    moves: Mapping[TopicPartition, tuple[int, ...]],
    leaving: tuple[int, ...],
) -> Iterator[MoveReplicas | Waiting]:
    """Yield the next moves, as many as may run beside those in progress."""
    if cluster.spec.moves.paused:
        if moves:
            message = f"spec.moves.paused: new replicas of {len(moves)} partitions wait"
            yield Waiting(resource=cluster.key, reason=Reason.PAUSED, message=message)
        return
    room = max(0, cluster.spec.moves.concurrent - len(seen.reassigning))
    some = dict(sorted(moves.items())[:room])
    if some:
        yield MoveReplicas(
            resource=cluster.key,
            moves=some,
            leaving=leaving,
            throttle=new_throttle(cluster, seen),
        )


def new_throttle(cluster: Cluster, seen: ObservedCluster) -> int | None:
    """Return the throttle to set before replicas move; None: it is set already."""
    wanted = int(parse_quantity(str(cluster.spec.moves.throttle)))
    has = (seen.live_config or {}).get(MOVES_THROTTLE)
    return None if str(wanted or None) == str(has) else wanted


def plan_end_of_throttle(cluster: Cluster, seen: ObservedCluster) -> Iterator[AlterClusterConfig]:
    """Remove the throttle once nothing moves and nothing is to move."""
    has = (seen.live_config or {}).get(MOVES_THROTTLE)
    if has is not None and not seen.reassigning:
        yield AlterClusterConfig(
            resource=cluster.key,
            delete=(MOVES_THROTTLE,),
            changes=(f"{MOVES_THROTTLE}: {has} -> default, since nothing moves any more",),
        )


def plan_throttle(cluster: Cluster, seen: ObservedCluster) -> Iterator[AlterClusterConfig]:
    """Apply a changed throttle of the spec while replicas move, without waiting for them."""
    has = (seen.live_config or {}).get(MOVES_THROTTLE)
    wanted = new_throttle(cluster, seen)
    if has is not None and wanted is not None and seen.reassigning:
        yield AlterClusterConfig(
            resource=cluster.key,
            set={MOVES_THROTTLE: str(wanted)} if wanted else {},
            delete=() if wanted else (MOVES_THROTTLE,),
            changes=(f"{MOVES_THROTTLE}: {has} -> {wanted or 'default'}",),
        )


def ends_throttle(outcome: object) -> bool:
    """Whether this is what `plan_end_of_throttle` plans."""
    return isinstance(outcome, AlterClusterConfig) and outcome.delete == (MOVES_THROTTLE,)


def moves_left(seen: ObservedCluster) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the remaining moves of the balance.

    If a partition's replicas are in their new order already, the controller's next preferred leader
    election makes the first of them leader, without a move.
    """
    return {
        key: replicas
        for key, replicas in (seen.balance or {}).items()
        if key not in seen.partitions or seen.partitions[key].replicas != replicas
    }


def progress_of(cluster: Cluster, seen: ObservedCluster) -> MovesProgress | None:
    """Return the progress of the operator's and any other moves; None: there are none."""
    drained = drained_brokers(seen)
    staying = [
        each.node_id
        for each in seen.brokers
        if each.is_registered and "broker" in each.roles and each.node_id not in drained
    ]
    copies: Counter[int] = Counter()
    planned = moves_left(seen)
    left = set(seen.reassigning)
    for key, partition in seen.partitions.items():
        sizes = seen.sizes.get(key, {})
        whole = sizes.get(partition.leader, 0)
        if key in seen.reassigning:
            for node_id in seen.adding.get(key, ()):
                copies[node_id] += max(0, whole - sizes.get(node_id, 0))
        elif key in planned:
            left.add(key)
            for node_id in set(planned[key]) - set(partition.replicas):
                copies[node_id] += whole
        elif leaving := drained & set(partition.replicas):
            left.add(key)
            for node_id in staying:
                # Their destination is decided when they begin.
                copies[node_id] += whole * len(leaving) // len(staying)
    if not left:
        return None
    throttle = int(parse_quantity(str(cluster.spec.moves.throttle)))
    is_known = bool(seen.sizes)
    slowest = max(copies.values(), default=0)
    return MovesProgress(
        partitions_moving=len(seen.reassigning),
        partitions_left=len(left),
        bytes_left=copies.total() if is_known else None,
        seconds_left=-(-slowest // throttle) if is_known and throttle else None,
    )
