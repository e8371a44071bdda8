"""Which replicas are moving, and their sizes, through Kafka's admin protocol. Blocking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_operator.plan.cordons import DRAINED_BROKERS
from headrace_operator.plan.moves import MOVES_THROTTLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace_operator.plan import TopicPartition

__all__ = ["observe_reassignments", "observe_sizes"]


def observe_reassignments(admin: Any) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the partitions whose replicas are moving, with their added replicas."""
    return {
        (partition.topic, partition.partition): tuple(moving["adding_replicas"])
        for partition, moving in admin.list_partition_reassignments().items()
    }


def observe_sizes(
    admin: Any,
    brokers: Iterable[Mapping[str, Any]],
    moving: Mapping[TopicPartition, Any],
    live_config: Mapping[str, str],
    *,
    is_wanted: bool = False,
) -> dict[TopicPartition, dict[int, int]]:
    """Return the bytes of all replicas, by broker, while some move or on request: it is much."""
    from kafka.errors import KafkaError

    if (
        not is_wanted
        and not moving
        and live_config.keys().isdisjoint({MOVES_THROTTLE, DRAINED_BROKERS})
    ):
        return {}
    alive = [each["broker_id"] for each in brokers if not each.get("is_fenced", False)]
    try:
        answers = admin.describe_log_dirs(None, alive)
    except KafkaError:
        return {}
    sizes: dict[TopicPartition, dict[int, int]] = {}
    for answer in answers:
        for directory in answer["log_dirs"]:
            for topic in directory["topics"]:
                for each in topic["partitions"]:
                    if not each["is_future_key"]:
                        key = (topic["name"], each["partition_index"])
                        sizes.setdefault(key, {})[answer["broker"]] = each["partition_size"]
    return sizes
