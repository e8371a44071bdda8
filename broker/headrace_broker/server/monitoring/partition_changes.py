"""Counts what happens to the partitions that this broker leads, from the metadata that it applies.

Exactly one broker counts each event, the leader after it, so that sums over brokers are right.
"""

from __future__ import annotations

from uuid import UUID

from headrace_broker.metadata.entities import PartitionImage
from headrace_broker.metadata.image import MetadataDelta, MetadataImage
from headrace_broker.metadata.partition_change import LeaderRecoveryState
from headrace_broker.protocol.types import NodeId


class PartitionChanges:
    """Totals since this process began."""

    def __init__(self) -> None:
        self.isr_shrinks = 0
        self.isr_expands = 0
        self.leader_elections = 0
        self.unclean_leader_elections = 0
        self._image = MetadataImage()

    def count(
        self, delta: MetadataDelta, image: MetadataImage, node_id: NodeId, incarnation_id: UUID
    ) -> None:
        """Compare an image with the previous one, in the partitions that `delta` names."""
        before, self._image = self._image, image
        own = image.brokers.get(node_id)
        if own is None or own.incarnation_id != incarnation_id:
            return  # changes from before this process started were counted by others
        for name, indexes in delta.topics_changed.items():
            old, new = before.topics.get(name), image.topics[name]
            if old is None or old.topic_id != new.topic_id:
                continue
            for index in indexes:
                was, now = old.partitions.get(index), new.partitions[index]
                if was is not None and now.leader == node_id:
                    self._count(was, now)

    def _count(self, was: PartitionImage, now: PartitionImage) -> None:
        old, new = set(was.isr), set(now.isr)
        self.isr_shrinks += bool(old - new)
        self.isr_expands += bool(new - old)
        if now.leader != was.leader:
            self.leader_elections += 1
            # The state stays until the leader's next AlterPartition (KIP-704), even if leaders
            # change.
            self.unclean_leader_elections += _is_recovering(now) and (
                not _is_recovering(was) or now.leader not in old.union(was.eligible_leader_replicas)
            )


def _is_recovering(partition: PartitionImage) -> bool:
    return partition.leader_recovery_state == LeaderRecoveryState.RECOVERING
