"""When a leader asks for another in-sync set, and what it does with the answer (KIP-497)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_broker.protocol.types import NodeId

if TYPE_CHECKING:
    from headrace_broker.server.partition import Partition


def expand_isr(partition: Partition) -> None:
    """Ask for an in-sync set with those that caught up."""
    leading = partition.leading
    if leading is None or leading.pending is not None:
        return
    host = partition.host
    joining = [
        node_id
        for node_id in leading.followers
        if leading.may_join(node_id, partition.high_watermark, host.is_eligible)
    ]
    if joining:
        leading.propose([*leading.isr, *joining], host.broker_epoch)
        host.request_isr_update(partition)


def isr_committed(
    partition: Partition, leader_epoch: int, isr: tuple[NodeId, ...], partition_epoch: int
) -> None:
    """The controller has changed the in-sync set; the metadata will say the same later."""
    leading = partition.leading
    if leading is None or leading.epoch != leader_epoch:
        return
    if leading.commit_isr(isr, partition_epoch):
        partition.in_sync_replicas, partition.partition_epoch = isr, partition_epoch
        partition.advance_high_watermark()
        expand_isr(partition)


def shrink_isr(partition: Partition) -> None:
    """Ask for an in-sync set without those that fell behind (periodically)."""
    leading = partition.leading
    if leading is None or not leading.followers:
        return
    host = partition.host
    leading.dismiss(
        [
            node_id
            for node_id in leading.joining
            if not host.is_eligible(node_id, leading.followers[node_id].broker_epoch)
        ]
    )
    late = leading.lagging(partition.log.log_end_offset, host.now_ms(), host.lag_time_max_ms)
    if late and leading.pending is None:
        leading.propose([node for node in leading.isr if node not in late], host.broker_epoch)
        host.request_isr_update(partition)
    partition.advance_high_watermark()
