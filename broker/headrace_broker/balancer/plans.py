"""The balancer's plans: rebalance, drain, and leaders alone. Pure and deterministic.

Bounds, checked by tests: with equal capacities and without racks, brokers differ by at most one
replica, and none leads more than its replicas require; with racks, no single move would help. The
weight (bytes and traffic) is within 10 % of the mean, or no exchange is worth its copying. The
replication factor stays, no broker has two replicas of a partition, no partition loses a rack, and
a balanced cluster's plan is empty.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from headrace_broker.balancer.layout import Layout
from headrace_broker.balancer.leadership import spread_leaders
from headrace_broker.balancer.model import BalancePlan, ClusterModel
from headrace_broker.balancer.replicas import (
    empty_broker,
    even_out_numbers,
    even_out_weight,
    spread_over_racks,
)
from headrace_broker.metadata.configs.balance_settings import PlannedMove
from headrace_broker.protocol.types import NodeId

#: Bytes per second that replication may use on each broker by default.
DEFAULT_THROTTLE_BYTES_PER_SECOND = 50_000_000.0


def plan_rebalance(
    cluster: ClusterModel, throttle_bytes_per_second: float = DEFAULT_THROTTLE_BYTES_PER_SECOND
) -> BalancePlan:
    """Plan moves that spread replicas over racks and brokers, then their weight, then leaders.

    Cordoned and dead brokers neither gain nor lose replicas. Partitions that are not fully in sync,
    or are moving, stay where they are.
    """
    layout = Layout(cluster)
    _note_unsettled(layout)
    if layout.takers:
        spread_over_racks(layout)
        # An exchange for weight may enable a move for numbers that the racks ruled out before.
        is_even = False
        while not is_even:
            even_out_numbers(layout)
            is_even = not even_out_weight(layout)
    spread_leaders(layout)
    return layout.plan(throttle_bytes_per_second)


def plan_drain(
    cluster: ClusterModel,
    node_id: NodeId,
    throttle_bytes_per_second: float = DEFAULT_THROTTLE_BYTES_PER_SECOND,
) -> BalancePlan:
    """Plan to empty one broker, dead or alive. It counts as cordoned.

    Replicas that cannot move because there are too few brokers are listed in `reasons`.
    """
    brokers = tuple(
        replace(broker, is_cordoned=True) if broker.node_id == node_id else broker
        for broker in cluster.brokers
    )
    layout = Layout(replace(cluster, brokers=brokers))
    moving = sum(
        partition.is_reassigning and node_id in partition.replicas
        for partition in cluster.partitions
    )
    if moving:
        layout.reasons.append(f"{moving} partitions of {node_id} are on the move: try again later")
    empty_broker(layout, node_id)
    spread_leaders(layout)
    return layout.plan(throttle_bytes_per_second)


def estimate_seconds(moves: Iterable[PlannedMove], bytes_per_second: float) -> float:
    """Return the copying time: brokers copy in parallel, so the one with the most determines it."""
    incoming: Counter[NodeId] = Counter()
    for move in moves:
        new = [node for node in move.after if node not in move.before]
        for node in new:
            incoming[node] += move.size_bytes // len(new)
    return max(incoming.values(), default=0) / bytes_per_second


def _note_unsettled(layout: Layout) -> None:
    waiting = sum(1 for place in range(len(layout.partitions)) if not layout.is_settled(place))
    if waiting:
        layout.reasons.append(f"{waiting} partitions are not in sync or on the move: left alone")
