"""How fast replicas move, and how many at once: the operator's own moves leave room for clients.

The throttle is a setting of the whole cluster, set before the first move and taken back after the
last, and no topic's: nothing of a person's reassignment is touched, and none is left behind. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_operator.plan.actions import AlterClusterConfig, MoveReplicas
from headrace_operator.resources.quantities import parse_quantity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace_operator.plan.model import ObservedCluster, TopicPartition
    from headrace_operator.resources import Cluster

__all__ = ["MOVES_THROTTLE", "next_moves", "plan_end_of_throttle"]

MOVES_THROTTLE = "headrace.moves.throttle"


def next_moves(
    cluster: Cluster,
    seen: ObservedCluster,
    moves: Mapping[TopicPartition, tuple[int, ...]],
    leaving: tuple[int, ...],
) -> Iterator[MoveReplicas]:
    """Yield the next of these moves, as many as there is room for beside what moves already."""
    room = max(0, cluster.spec.moves.concurrent - len(seen.reassigning))
    some = dict(sorted(moves.items())[:room])
    if some:
        wanted = int(parse_quantity(str(cluster.spec.moves.throttle)))
        has = (seen.live_config or {}).get(MOVES_THROTTLE)
        yield MoveReplicas(
            resource=cluster.key,
            moves=some,
            leaving=leaving,
            throttle=None if str(wanted or None) == str(has) else wanted,
        )


def plan_end_of_throttle(cluster: Cluster, seen: ObservedCluster) -> Iterator[AlterClusterConfig]:
    """Take the throttle back where nothing moves and nothing is to move any more."""
    has = (seen.live_config or {}).get(MOVES_THROTTLE)
    if has is not None and not seen.reassigning:
        yield AlterClusterConfig(
            resource=cluster.key,
            delete=(MOVES_THROTTLE,),
            changes=(f"{MOVES_THROTTLE}: {has} -> default, since nothing moves any more",),
        )
