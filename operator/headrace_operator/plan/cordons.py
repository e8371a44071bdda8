"""Plans which brokers get no new replicas while they are drained. Pure.

A setting of the cluster itself records which brokers the operator cordoned. So brokers that a user
cordoned stay so, and another operator, or this one after a restart, knows what to uncordon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_operator.plan.actions import CordonBrokers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from headrace_operator.plan.model import ObservedCluster
    from headrace_operator.resources import Cluster

__all__ = ["DRAINED_BROKERS", "drained_brokers", "plan_cordons"]

#: The brokers that the operator has cordoned, as ids with commas.
DRAINED_BROKERS = "headrace.drain.brokers"


def drained_brokers(seen: ObservedCluster) -> set[int]:
    """Return the brokers that the operator has cordoned."""
    listed = (seen.live_config or {}).get(DRAINED_BROKERS, "")
    return {int(text) for text in listed.split(",") if text.strip().isdecimal()}


def plan_cordons(
    cluster: Cluster,
    seen: ObservedCluster | None,
    draining: Collection[int],
    leaving: Collection[int],
) -> Iterator[CordonBrokers]:
    """Cordon the `draining` brokers; uncordon earlier ones that are not `leaving` any longer."""
    if seen is None or seen.live_config is None:
        return
    drained = drained_brokers(seen)
    alive = {each.node_id for each in seen.brokers if each.is_registered and "broker" in each.roles}
    known = {each.node_id for each in seen.brokers} | set(seen.departed)
    cordoned = (set(draining) & alive) - drained
    # A broker that is down cannot be changed; it is uncordoned when it is back.
    uncordoned = (drained - set(leaving)) & alive
    after = ((drained & known) | cordoned) - uncordoned
    if after != drained:
        yield CordonBrokers(
            resource=cluster.key,
            cordoned=tuple(sorted(cordoned)),
            uncordoned=tuple(sorted(uncordoned)),
            drained=tuple(sorted(after)),
        )
