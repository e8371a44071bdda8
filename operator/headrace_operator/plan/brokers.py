"""Plans a Cluster's brokers: which to start, to stop, to give new settings. Pure.

Node ids are given once: a pool's new broker takes the lowest free id, and a pool shrinks from its
highest. Settings roll one broker at a time and only while every partition is whole, so that a
change of settings never costs availability; controllers come last (operators.md, pains 2 to 4).
Who votes in the metadata quorum is settled when the cluster is formed, and stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace_operator.plan.actions import ReconfigureBroker, StartBroker, UnregisterBroker
from headrace_operator.plan.model import (
    Action,
    Observed,
    ObservedBroker,
    Problem,
    Waiting,
)
from headrace_operator.plan.removal import plan_removal
from headrace_operator.resources import Cluster, Pool, Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Kafka's quickstarts begin at 1 as well; 0 looks like "not set" in too many places.
FIRST_NODE_ID = 1
#: Three voters survive the loss of one; more only make each metadata change slower.
VOTERS_MAX = 3


@dataclass(frozen=True, kw_only=True)
class BrokerPlan:
    """What the brokers need."""

    actions: tuple[Action, ...]
    waiting: tuple[Waiting, ...]
    problems: tuple[Problem, ...] = ()


def plan_brokers(observed: Observed, cluster: Cluster) -> BrokerPlan:
    """Compare pools with brokers."""
    brokers = observed.cluster.brokers if observed.cluster else ()
    taken = {broker.node_id for broker in brokers}
    voters_left = 0 if brokers else count_voters(cluster)
    are_dedicated = any(pool.roles == ("controller",) for pool in cluster.spec.pools)
    config = {key: config_text(value) for key, value in cluster.spec.config.items()}
    actions: list[Action] = []
    waiting: list[Waiting] = []
    surplus: list[ObservedBroker] = []
    for pool in cluster.spec.pools:
        mine = sorted(
            (broker for broker in brokers if broker.pool == pool.name),
            key=lambda broker: broker.node_id,
        )
        kept = mine[: pool.replicas]
        surplus += reversed(mine[pool.replicas :])
        actions += [
            _start(cluster, pool, (broker.node_id, broker.roles), config)
            for broker in kept
            if not broker.is_running
        ]
        for _ in range(pool.replicas - len(kept)):
            node_id = _lowest_free(taken)
            taken.add(node_id)
            roles = _new_roles(pool, may_vote=voters_left > 0 and not are_dedicated)
            voters_left -= "controller" in roles
            actions.append(_start(cluster, pool, (node_id, roles), config))
    pools = {pool.name for pool in cluster.spec.pools}
    surplus += [broker for broker in brokers if broker.pool not in pools]
    outcomes = [*plan_removal(observed, cluster, surplus, config), *_departed(observed, cluster)]
    actions += [each for each in outcomes if isinstance(each, Action)]
    waiting += [each for each in outcomes if isinstance(each, Waiting)]
    if not outcomes and not actions:
        _roll(observed, cluster, config, actions, waiting)
    return BrokerPlan(
        actions=tuple(actions),
        waiting=tuple(waiting),
        problems=tuple(each for each in outcomes if isinstance(each, Problem)),
    )


def _departed(observed: Observed, cluster: Cluster) -> Iterator[UnregisterBroker]:
    for node_id in observed.cluster.departed if observed.cluster else ():
        yield UnregisterBroker(resource=cluster.key, node_id=node_id)


def config_text(value: str | int) -> str:
    """Return a setting as the broker writes it."""
    return str(value).strip()


def config_changes(current: Mapping[str, str], wanted: Mapping[str, str]) -> tuple[str, ...]:
    """Say each difference as `key: old -> new`."""
    return tuple(
        f"{key}: {current.get(key, 'default')} -> {wanted.get(key, 'default')}"
        for key in sorted({*current, *wanted})
        if current.get(key) != wanted.get(key)
    )


def _lowest_free(taken: set[int]) -> int:
    node_id = FIRST_NODE_ID
    while node_id in taken:
        node_id += 1
    return node_id


def count_voters(cluster: Cluster) -> int:
    """Count the nodes that vote when this cluster is formed.

    All nodes that are nothing but controllers; else as many as there can be of those that are
    both, up to three, and an odd number: two voters stop when either of them does.
    """
    pools = cluster.spec.pools
    dedicated = sum(pool.replicas for pool in pools if pool.roles == ("controller",))
    if dedicated:
        return dedicated
    able = min(VOTERS_MAX, sum(pool.replicas for pool in pools if "controller" in pool.roles))
    return able - (able % 2 == 0 and able > 0)


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


def _roll(
    observed: Observed,
    cluster: Cluster,
    config: Mapping[str, str],
    actions: list[Action],
    waiting: list[Waiting],
) -> None:
    brokers = observed.cluster.brokers if observed.cluster else ()
    pools = {pool.name for pool in cluster.spec.pools}
    outdated = [
        broker for broker in brokers if broker.pool in pools and dict(broker.config) != config
    ]
    if not outdated:
        return
    blockers = list(_blockers(observed, brokers))
    if blockers:
        message = (
            f"{len(outdated)} brokers get new settings when everything is in sync again:"
            f" {'; '.join(blockers[:3])}"
        )
        waiting.append(
            Waiting(resource=cluster.key, reason=Reason.WAITING_FOR_BROKERS, message=message)
        )
        return
    outdated.sort(key=lambda broker: ("controller" in broker.roles, broker.node_id))
    first = outdated[0]
    actions.append(
        ReconfigureBroker(
            resource=cluster.key,
            node_id=first.node_id,
            pool=first.pool,
            config=config,
            changes=config_changes(first.config, config),
        )
    )
    if len(outdated) > 1:
        message = f"{len(outdated) - 1} brokers get new settings after broker {first.node_id}"
        waiting.append(
            Waiting(resource=cluster.key, reason=Reason.WAITING_FOR_BROKERS, message=message)
        )


def _blockers(observed: Observed, brokers: tuple[ObservedBroker, ...]) -> Iterator[str]:
    for broker in brokers:
        if not broker.is_registered:
            yield f"broker {broker.node_id} is not registered"
    # With one replica there is nothing to wait for: the partition goes with its broker anyway.
    for name, topic in sorted(observed.topics.items()):
        if topic.replicas > 1:
            for index in topic.under_replicated:
                yield f"{name}-{index} is not in sync"
