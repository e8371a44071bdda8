"""What becomes of a replica with damaged records: it gives up its place, and is replicated again.

First the controller takes it out of leadership, in-sync set and eligible replicas, because it says
that it is in the lost directory (KIP-858), and begins a new leader epoch: what the leader has heard
of its progress counts no more, nor what is still under way. In that epoch it is cut where the
damage begins, says where it is, and follows. Where no other replica is in sync it stays as it is:
what is damaged is answered with an error, the rest is served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from headrace_broker.protocol.types import LOST_DIRECTORY, MIGRATING_DIRECTORY, NodeId

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from headrace_broker.metadata.entities import PartitionImage
    from headrace_broker.server.partitions.partition import Partition

log = structlog.get_logger()


def heal(
    partition: Partition,
    image: PartitionImage,
    actual: UUID,
    *,
    note_directory: Callable[[UUID, int, UUID, UUID], None],
    follow: Callable[[Partition], None],
) -> None:
    """Do what can be done now for a replica; again after each change of the partition.

    `actual` is the log directory that holds it; `follow` fetches it from where it ends on.
    """
    node_id = partition.node_id
    known = image.directory_of(node_id)
    replica = partition.topic_id, partition.index
    if not partition.log.damages or not has_good_copy(node_id, image):
        if known == LOST_DIRECTORY:
            note_directory(*replica, known, actual)
        return
    counted = (image.leader, *image.isr, *image.eligible_leader_replicas)
    if (
        node_id in counted
        or known != LOST_DIRECTORY
        or partition.cut_in_epoch == image.leader_epoch
    ):
        note_directory(*replica, MIGRATING_DIRECTORY, LOST_DIRECTORY)
        return
    if partition.leader_epoch != image.leader_epoch or partition.leading is not None:
        return  # the metadata is being applied
    before = partition.log.log_end_offset
    end = partition.cut_damage()
    log.warning(
        "damaged records are cut and replicated again",
        topic=partition.topic,
        partition=partition.index,
        leader=image.leader,
        end_before=before,
        end=end,
    )
    follow(partition)
    note_directory(*replica, known, actual)


def has_good_copy(node_id: NodeId, image: PartitionImage) -> bool:
    """Whether another replica is in sync."""
    return any(node != node_id for node in image.isr)
