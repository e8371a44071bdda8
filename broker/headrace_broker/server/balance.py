"""The balancer's plans for this node's HTTP side: the image, and what this node can measure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_broker.balancer.observation import Measurements, observe_cluster
from headrace_broker.balancer.plans import plan_drain, plan_rebalance
from headrace_broker.protocol.types import NodeId
from headrace_broker.web.planned_balance import BrokerNotFoundError, PlannedBalance

if TYPE_CHECKING:
    from headrace_broker.server.broker import Broker


def plan_balance(broker: Broker, drain: NodeId | None) -> PlannedBalance:
    """Plan on what this node knows now. Raises BrokerNotFoundError.

    Sizes count only where this node has a replica of every partition: half of them would make
    the others look empty.
    """
    image = broker.metadata
    if drain is not None and drain not in image.brokers:
        raise BrokerNotFoundError(f"no broker {drain} is registered")
    sizes = {(each.topic, each.index): each.log.size_bytes for each in broker.replicas}
    every = {(name, index) for name, topic in image.topics.items() for index in topic.partitions}
    unmeasured = len(every - sizes.keys())
    cluster = observe_cluster(image, Measurements(size_bytes={} if unmeasured else sizes))
    plan = plan_rebalance(cluster) if drain is None else plan_drain(cluster, drain)
    return PlannedBalance(plan=plan, unmeasured_partitions=unmeasured)
