"""Writes a transaction's marker into a partition that this broker leads."""

from typing import Final

from headrace_broker.log.markers import Marker
from headrace_broker.log.validation import AppendOrigin
from headrace_broker.protocol.types import Offset, TimestampMs
from headrace_broker.server.partitions.partition import ANY_EPOCH, Partition

_ACKS_ALL: Final = -1


def write_marker(partition: Partition, marker: Marker, now_ms: TimestampMs) -> Offset:
    """Append; return the offset below which all records must be committed for the marker to be.

    A marker that the log has already is not written again. Raises ApiError with nothing appended.
    """
    partition.check_leader(ANY_EPOCH)
    if marker.bumped_epoch and partition.log.producers.is_marked(
        marker.producer_id, marker.producer_epoch, marker.coordinator_epoch
    ):
        return partition.log.log_end_offset
    batch = marker.batch(now_ms)
    info = partition.append(batch, _ACKS_ALL, now_ms, origin=AppendOrigin.COORDINATOR)
    if not marker.bumped_epoch:
        partition.log.producers.verifications.end(marker.producer_id)
    return Offset(info.last_offset + 1)
