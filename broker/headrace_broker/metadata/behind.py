"""Which brokers have replicas outside of their in-sync sets. Pure.

While a broker serves but lags, the next one must not be stopped: a PodDisruptionBudget counts ready
pods, and knows nothing of in-sync sets.
"""

from collections import defaultdict
from collections.abc import Sequence

from headrace_broker.metadata.entities import NO_LEADER
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.types import NodeId, PartitionIndex

_SHOWN = 3


def replicas_behind(image: MetadataImage) -> dict[NodeId, list[tuple[str, PartitionIndex]]]:
    """Return, by broker, the partitions in which the broker's replica must still catch up.

    Replicas that are being added or removed do not count: no partition relies on them. Nor do those
    of a partition without a leader, because there is nothing to fetch from.
    """
    found: dict[NodeId, list[tuple[str, PartitionIndex]]] = defaultdict(list)
    for name, topic in image.topics.items():
        for index, partition in topic.partitions.items():
            if partition.leader == NO_LEADER or len(partition.isr) >= len(partition.replicas):
                continue
            for node in partition.replicas:
                if node not in (
                    *partition.isr,
                    *partition.adding_replicas,
                    *partition.removing_replicas,
                ):
                    found[node].append((name, index))
    return dict(found)


def why_behind(image: MetadataImage, node: NodeId) -> str:
    """Return which replicas a broker still has to catch up; '' if it may count as ready.

    If every live broker lags, as after the loss of all of them, the one that lags in the fewest
    partitions is not reported: clients need a ready broker to start with. More than one could be
    stopped though a partition has no replica in sync to spare.
    """
    behind = replicas_behind(image)
    if node not in behind:
        return ""
    live = sorted(each.node_id for each in image.active_brokers())
    if all(each in behind for each in live):
        kept = min(live, key=lambda each: len(behind[each]), default=node)
        if node == kept:
            return ""
    return f"replicas that are not in sync yet: {_listed(behind[node])}"


def _listed(partitions: Sequence[tuple[str, PartitionIndex]]) -> str:
    shown = [f"{name}-{index}" for name, index in sorted(partitions)[:_SHOWN]]
    if len(partitions) > _SHOWN:
        shown.append(f"and {len(partitions) - _SHOWN} more")
    return ", ".join(shown)
