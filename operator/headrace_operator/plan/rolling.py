"""Plans which broker is restarted next, or what the restart waits for. Pure.

One broker at a time, controllers last and the active controller after them, and only while every
partition is fully in sync. A restart takes one replica out, so no partition falls below
min.insync.replicas, and no broker that still catches up is restarted. A broker that fails because
of its own start configuration does not block the restart that would fix it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from headrace_operator.plan.actions import ReconfigureBroker
from headrace_operator.plan.model import Action, Waiting
from headrace_operator.resources import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace_operator.plan.model import Observed, ObservedBroker, ObservedCluster
    from headrace_operator.resources import Cluster

__all__ = [
    "address_changes",
    "config_changes",
    "is_yet_to_begin",
    "outdated_brokers",
    "plan_roll",
    "restart",
    "without_reserve",
]

BLOCKERS_SHOWN = 3
#: Kafka's default, if neither the topic nor the cluster sets it.
MIN_IN_SYNC_DEFAULT = "1"


def config_changes(current: Mapping[str, str], wanted: Mapping[str, str]) -> tuple[str, ...]:
    """Return each difference as `key: old -> new`."""
    return tuple(
        f"{key}: {current.get(key, 'default')} -> {wanted.get(key, 'default')}"
        for key in sorted({*current, *wanted})
        if current.get(key) != wanted.get(key)
    )


def address_changes(broker: ObservedBroker) -> tuple[str, ...]:
    """Return where a broker advertises other addresses than its present ones.

    A listener that it does not advertise is not compared; unknown addresses change nothing.
    """
    advertised = broker.advertised or {}
    changes = []
    for listener, address in sorted(broker.addresses.items()):
        if listener not in advertised:
            continue
        host, _, port = advertised[listener].rpartition(":")
        wanted_host, _, wanted_port = address.rpartition(":")
        wanted_host = wanted_host or host
        if port != wanted_port:
            old, new = f"{host}:{port}", f"{wanted_host}:{wanted_port}"
        else:
            old, new = host, wanted_host
        if old != new:
            changes.append(f"address of listener {listener}: {old} -> {new}")
    return tuple(changes)


def plan_roll(
    observed: Observed, cluster: Cluster, config: Mapping[str, str]
) -> list[Action | Waiting]:
    """Plan the next restart, or why there is none yet; nothing if all brokers are current."""
    outdated = outdated_brokers(observed, cluster, config)
    if not outdated:
        return []
    failing = [broker for broker in outdated if broker.failing]
    first = (failing or outdated)[0]
    blockers = [] if failing else list(_blockers(observed, first))
    if blockers:
        shown = blockers[:BLOCKERS_SHOWN]
        if len(blockers) > len(shown):
            shown.append(f"and {len(blockers) - len(shown)} more")
        message = (
            f"{len(outdated)} brokers get new settings when everything is in sync again:"
            f" {'; '.join(shown)}"
        )
        return [_wait(cluster, message)]
    outcomes: list[Action | Waiting] = [restart(cluster, first, config)]
    if len(outdated) > 1:
        message = f"{len(outdated) - 1} brokers get new settings after broker {first.node_id}"
        outcomes.append(_wait(cluster, message))
    return outcomes


def outdated_brokers(
    observed: Observed, cluster: Cluster, config: Mapping[str, str]
) -> list[ObservedBroker]:
    """Return the brokers that must be restarted, in order."""
    pools = {pool.name for pool in cluster.spec.pools}
    brokers = observed.cluster.brokers if observed.cluster else ()
    outdated = [
        broker
        for broker in brokers
        if broker.pool in pools and (dict(broker.config) != dict(config) or _outdated(broker))
    ]
    quorum = observed.cluster.quorum if observed.cluster else None
    active = quorum.leader_id if quorum else None
    return sorted(
        outdated,
        # The active one last: otherwise each restart of a controller would cause an election.
        key=lambda broker: (
            "controller" in broker.roles,
            broker.node_id == active,
            broker.node_id,
        ),
    )


def is_yet_to_begin(seen: ObservedCluster, broker: ObservedBroker) -> bool:
    """Whether a broker has never had anything, and its start waits: nobody misses it."""
    is_voter = seen.quorum is None or seen.quorum.votes(broker.node_id)
    return not broker.is_running and not broker.replicas and not is_voter


def restart(
    cluster: Cluster, broker: ObservedBroker, config: Mapping[str, str]
) -> ReconfigureBroker:
    """Return the action that restarts a broker with its wanted settings."""
    return ReconfigureBroker(
        resource=cluster.key,
        node_id=broker.node_id,
        pool=broker.pool,
        config=config,
        changes=(*config_changes(broker.config, config), *_outdated(broker)),
    )


def _outdated(broker: ObservedBroker) -> tuple[str, ...]:
    """Return what else, besides settings, differs from its desired state."""
    reasons = (*broker.outdated, *address_changes(broker))
    if broker.placed_rack in (None, broker.rack) or not broker.is_registered:
        return reasons
    return (*reasons, f"rack: {broker.rack} -> {broker.placed_rack}")


def _wait(cluster: Cluster, message: str) -> Waiting:
    return Waiting(resource=cluster.key, reason=Reason.WAITING_FOR_BROKERS, message=message)


def _blockers(observed: Observed, broker: ObservedBroker) -> Iterator[str]:
    seen = observed.cluster
    if seen is None:
        return
    if not seen.is_reachable:
        if seen.is_formed:
            yield "the brokers do not answer"
        return
    for each in seen.brokers:
        if is_yet_to_begin(seen, each):
            continue
        if not each.is_registered:
            why = f" ({each.failing})" if each.failing else ""
            yield f"broker {each.node_id} is not registered{why}"
        elif not each.is_ready:
            yield f"broker {each.node_id} is not ready"
    yield from _out_of_sync(seen)
    yield from without_reserve(observed, seen, broker)


def _out_of_sync(seen: ObservedCluster) -> Iterator[str]:
    for (topic, index), partition in sorted(seen.partitions.items()):
        # A single replica needs no waiting: it goes down with its broker anyway.
        if len(partition.replicas) > 1 and partition.is_under_replicated:
            since = seen.out_of_sync_since.get((topic, index))
            yield (
                f"{topic}-{index} is not in sync: {_ids(partition.in_sync)} of"
                f" {_ids(partition.replicas)}" + (f" since {since}" if since else "")
            )


def without_reserve(
    observed: Observed, seen: ObservedCluster, broker: ObservedBroker
) -> Iterator[str]:
    """Return topics that refuse writes as soon as one replica is down."""
    lowest: dict[str, int] = defaultdict(lambda: 1 << 30)
    for (topic, _), partition in seen.partitions.items():
        if broker.node_id in partition.replicas and len(partition.replicas) > 1:
            lowest[topic] = min(lowest[topic], len(partition.replicas))
    inherited = (seen.live_config or {}).get("min.insync.replicas") or broker.config.get(
        "min.insync.replicas", MIN_IN_SYNC_DEFAULT
    )
    for topic, replicas in sorted(lowest.items()):
        config = observed.topics[topic].config if topic in observed.topics else {}
        needed = config.get("min.insync.replicas", inherited)
        if needed.isdigit() and replicas <= int(needed):
            yield (
                f"{topic} has {replicas} replicas and min.insync.replicas {needed}: without broker"
                f" {broker.node_id} it would refuse writes; lower the one or raise the other"
            )


def _ids(node_ids: Sequence[int]) -> str:
    return ",".join(map(str, sorted(node_ids))) or "none"
