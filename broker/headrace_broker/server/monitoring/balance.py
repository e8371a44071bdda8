"""The balancer's plans for this node's HTTP side, from the image and the brokers' measurements."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace_broker.balancer.execution import PlanProgress, progress_of
from headrace_broker.balancer.observation import Measurements, observe_cluster
from headrace_broker.balancer.plans import (
    DEFAULT_THROTTLE_BYTES_PER_SECOND,
    plan_drain,
    plan_rebalance,
)
from headrace_broker.metadata.settings.broker_settings import BALANCE_LAST
from headrace_broker.metadata.settings.resources import broker_resource
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from headrace_broker.protocol.types import NodeId, PartitionIndex
from headrace_broker.server.peers.peers import PeerUnavailable
from headrace_broker.web.planned_balance import BrokerNotFoundError, PlannedBalance

if TYPE_CHECKING:
    from headrace_broker.server.monitoring.node import Node

_MEASURE_TIMEOUT_MS = 2000
_Sizes = dict[tuple[str, PartitionIndex], int]


async def plan_balance(
    broker: Node, drain: NodeId | None, throttle_bytes_per_second: float | None
) -> PlannedBalance:
    """Make a plan from the image and current measurements. Raises BrokerNotFoundError.

    Sizes count only if every partition's size is known: otherwise the unknown ones would look
    empty.
    """
    sizes = await measure_sizes(broker)
    image = broker.metadata
    if drain is not None and drain not in image.brokers:
        raise BrokerNotFoundError(f"no broker {drain} is registered")
    every = {(name, index) for name, topic in image.topics.items() for index in topic.partitions}
    unmeasured = len(every - sizes.keys())
    cluster = observe_cluster(image, Measurements(size_bytes={} if unmeasured else sizes))
    throttle = throttle_bytes_per_second or DEFAULT_THROTTLE_BYTES_PER_SECOND
    if drain is None:
        plan = plan_rebalance(cluster, throttle)
    else:
        plan = plan_drain(cluster, drain, throttle)
    return PlannedBalance(plan=plan, unmeasured_partitions=unmeasured)


async def measure_sizes(broker: Node) -> _Sizes:
    """Ask every broker for the sizes of its replicas; a partition's largest replica counts.

    A broker that does not answer is left out: other brokers have replicas of the same partitions.
    """
    own = broker.config.node_id
    sizes: _Sizes = {(each.topic, each.index): each.log.size_bytes for each in broker.replicas}
    others = [each.node_id for each in broker.metadata.active_brokers() if each.node_id != own]
    for answer in await asyncio.gather(*(_ask(broker, node_id) for node_id in others)):
        for result in answer.results if answer is not None else ():
            for topic in result.topics if result.error_code == ErrorCode.NONE else ():
                for each in topic.partitions:
                    key = topic.name, PartitionIndex(each.partition_index)
                    sizes[key] = max(sizes.get(key, 0), each.partition_size)
    return sizes


async def _ask(broker: Node, node_id: NodeId) -> DescribeLogDirsResponse | None:
    request = DescribeLogDirsRequest(topics=None)
    try:
        answer: DescribeLogDirsResponse = await broker.peers.send(
            node_id, request, timeout_ms=_MEASURE_TIMEOUT_MS
        )
    except PeerUnavailable:
        return None
    return answer


def balance_progress(broker: Node) -> tuple[PlanProgress | None, str | None]:
    """Return the plan in progress, and the outcome of the last one."""
    image = broker.metadata
    return progress_of(image), image.config(broker_resource(None)).get(BALANCE_LAST)
