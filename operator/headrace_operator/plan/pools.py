"""Compares pools with the brokers that there are: who is to start, and who leaves. Pure.

Node ids are given once: a pool's new broker takes the lowest free id, and a pool shrinks from its
end. A certain broker that is to leave (`spec.removeBrokers`) is drained like any other. Where its
place in the pool has to stay, since places are counted without gaps (a StatefulSet's), another
broker by another id begins there; one place after the other, and the pool shrinks after that: so
nobody is drained to fewer brokers than there will be.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace_operator.plan.actions import StartBroker
from headrace_operator.plan.voters import count_voters

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from headrace_operator.plan.model import Observed, ObservedBroker
    from headrace_operator.resources import Cluster, Pool

__all__ = ["FIRST_NODE_ID", "ComparedPools", "compare_pools"]

#: Kafka's quickstarts begin at 1, too; in too many places 0 looks like "not set".
FIRST_NODE_ID = 1


@dataclass(frozen=True, kw_only=True)
class ComparedPools:
    """What starts the brokers that pools want, and those that no pool wants."""

    starts: Sequence[StartBroker] = ()
    surplus: Sequence[ObservedBroker] = ()
    #: By the id of a broker that leaves a place which stays: the id of the one that begins there.
    successors: Mapping[int, int] = field(default_factory=dict)


def compare_pools(observed: Observed, cluster: Cluster, config: Mapping[str, str]) -> ComparedPools:
    """Compare the pools of a spec with the brokers."""
    brokers = observed.cluster.brokers if observed.cluster else ()
    named = set(cluster.spec.remove_brokers)
    kept: dict[str, list[ObservedBroker]] = {}
    surplus: list[ObservedBroker] = []
    missing: dict[str, int] = {}
    followed: list[int] = []
    for pool in cluster.spec.pools:
        mine = sorted(
            (broker for broker in brokers if broker.pool == pool.name),
            key=lambda broker: (broker.ordinal or 0, broker.node_id),
        )
        leaving, is_followed = _leaving(mine, named, pool.replicas)
        surplus += leaving
        kept[pool.name] = [broker for broker in mine if broker not in leaving]
        followed += [broker.node_id for broker in leaving if is_followed]
        missing[pool.name] = pool.replicas - len(kept[pool.name]) - is_followed
    surplus += [broker for broker in brokers if broker.pool not in kept]
    free = _free_ids({broker.node_id for broker in brokers} | named)
    starts = list(_starts(cluster, kept, missing, free, config))
    return ComparedPools(
        starts=starts,
        surplus=surplus,
        successors={node_id: next(free) for node_id in followed},
    )


def _leaving(
    mine: Sequence[ObservedBroker], named: Collection[int], replicas: int
) -> tuple[list[ObservedBroker], bool]:
    """Return who of a pool's brokers leaves now; and whether another one takes the place."""
    asked = [broker for broker in mine if broker.node_id in named]
    if any(broker.ordinal is None for broker in mine):
        staying = [broker for broker in mine if broker not in asked]
        return [*asked, *reversed(staying[replicas:])], False
    if any(broker.succeeds is not None for broker in mine):
        # Who leaves next needs somewhere to go.
        return [], False
    first = [broker for broker in asked if (broker.ordinal or 0) < replicas][:1]
    return (first, True) if first else (list(reversed(mine[replicas:])), False)


def _starts(
    cluster: Cluster,
    kept: Mapping[str, Sequence[ObservedBroker]],
    missing: Mapping[str, int],
    free: Iterator[int],
    config: Mapping[str, str],
) -> Iterator[StartBroker]:
    voters_left = count_voters(cluster) - sum(
        "controller" in broker.roles for mine in kept.values() for broker in mine
    )
    are_dedicated = any(pool.roles == ("controller",) for pool in cluster.spec.pools)
    for pool in cluster.spec.pools:
        for broker in kept[pool.name]:
            if not broker.is_running:
                yield _start(cluster, pool, (broker.node_id, broker.roles), config)
        for _ in range(missing[pool.name]):
            roles = _new_roles(pool, may_vote=voters_left > 0 and not are_dedicated)
            voters_left -= "controller" in roles
            yield _start(cluster, pool, (next(free), roles), config)


def _free_ids(taken: Collection[int]) -> Iterator[int]:
    node_id = FIRST_NODE_ID
    while True:
        if node_id not in taken:
            yield node_id
        node_id += 1


def _new_roles(pool: Pool, *, may_vote: bool) -> tuple[str, ...]:
    if may_vote or "broker" not in pool.roles:
        return pool.roles
    return ("broker",)


def _start(
    cluster: Cluster, pool: Pool, node: tuple[int, tuple[str, ...]], config: Mapping[str, str]
) -> StartBroker:
    node_id, roles = node
    rack = pool.racks[node_id % len(pool.racks)] if pool.racks else None
    return StartBroker(
        resource=cluster.key,
        node_id=node_id,
        pool=pool.name,
        roles=roles,
        config=config,
        rack=rack,
    )
