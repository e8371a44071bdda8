"""Heals a replica with damaged records: it leaves the in-sync set and replicates them again.

The replica first reports itself in the lost directory (KIP-858). The controller then removes it as
leader, from the in-sync set and from the eligible replicas, and begins a new leader epoch. In that
epoch the leader ignores the progress that the replica reported earlier, and so any fetch still in
flight. The replica cuts its log where the damage begins, reports its real directory, and follows.
If no other replica is in sync, it keeps its place: reads of damaged records return an error,
everything else is served.
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
    """Take the next step for a damaged replica; call it again after each change of the partition.

    `actual` is the log directory that holds the replica; `follow` starts to fetch from its log end.
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
        return  # this broker has not applied the new metadata to the partition yet
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
