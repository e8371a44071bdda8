"""Which brokers lack replicas in the in-sync sets that they belong to. Pure.

A broker that serves and is behind must keep the next one from being taken away: a
PodDisruptionBudget counts pods that are ready, and knows nothing of in-sync sets.
"""

from collections import defaultdict
from collections.abc import Sequence

from headrace_broker.metadata.entities import NO_LEADER
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.types import NodeId, PartitionIndex

_SHOWN = 3


def replicas_behind(image: MetadataImage) -> dict[NodeId, list[tuple[str, PartitionIndex]]]:
    """Return, by broker, the partitions whose leader waits for its replica to catch up.

    Replicas that are being added or removed are not counted: nobody relies on them. Nor are those
    of a partition without a leader, from whom nothing can be fetched.
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
    """Say which replicas a broker still has to catch up with; '' where it may count as ready.

    Where every broker that is alive is behind, as after the loss of them all, none says so:
    somebody has to be there for clients that begin.
    """
    behind = replicas_behind(image)
    if node not in behind or all(each.node_id in behind for each in image.active_brokers()):
        return ""
    return f"replicas that are not in sync yet: {_listed(behind[node])}"


def _listed(partitions: Sequence[tuple[str, PartitionIndex]]) -> str:
    shown = [f"{name}-{index}" for name, index in sorted(partitions)[:_SHOWN]]
    if len(partitions) > _SHOWN:
        shown.append(f"and {len(partitions) - _SHOWN} more")
    return ", ".join(shown)
