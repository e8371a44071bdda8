"""`Elections`: tells a coordinator which partitions of its topic this broker now leads.

Remembers the leader epoch that the coordinator loaded: between two images another broker may have
led the partition.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Final

from headrace_broker.log.batches import iterate_headers
from headrace_broker.log.files import LogDirectoryFailure
from headrace_broker.protocol.types import LeaderEpoch, Offset, PartitionIndex
from headrace_broker.server.partitions.partition import ANY_EPOCH, Partition

if TYPE_CHECKING:
    from headrace_broker.metadata.image import MetadataDelta
    from headrace_broker.server.partitions.replica_manager import ReplicaManager

_CHUNK_BYTES: Final = 1024 * 1024


class Elections:
    """One internal topic's partitions, as far as this broker leads them."""

    def __init__(
        self,
        topic: str,
        replicas: ReplicaManager,
        load: Callable[[Partition], Awaitable[None]],
        unload: Callable[[PartitionIndex], None],
    ) -> None:
        self.topic = topic
        self.unload = unload
        self._replicas = replicas
        self._load = load
        self._epochs: dict[PartitionIndex, LeaderEpoch] = {}

    async def apply(self, delta: MetadataDelta) -> None:
        """Load the partitions that this broker leads now, and unload those that it led before."""
        for index in delta.topics_changed.get(self.topic, ()):
            partition = self._replicas.partitions_of(self.topic).get(index)
            if partition is not None and partition.leading is not None:
                if self._epochs.get(index) != partition.leader_epoch:
                    self._epochs[index] = partition.leader_epoch
                    await self._load(partition)
            elif self._epochs.pop(index, None) is not None:
                self.unload(index)


async def read_to_end(
    partition: Partition, chunk_bytes: int = _CHUNK_BYTES
) -> AsyncIterator[bytes]:
    """Yield a partition's log as it is now, as runs of whole batches.

    Reads beyond the high watermark, as Kafka's coordinators do: a new leader's high watermark may
    still be below offsets that the former leader acknowledged. Records above it here are committed
    later, or this broker loses leadership. Raises ApiError.
    """
    partition.check_leader(ANY_EPOCH)
    log = partition.log
    position, end = Offset(log.log_start_offset), log.log_end_offset
    while position < end:
        try:
            # A move to another log directory may replace the partition's log in the meantime.
            chunk = bytes(
                partition.log.read(position, chunk_bytes, upper_bound=end, at_least_one=True)
            )
        except LogDirectoryFailure as failure:
            raise partition.directory_failed(failure) from failure
        for _, header in iterate_headers(chunk):
            position = header.next_offset
        if not chunk:
            return
        yield chunk


async def wait_all_committed(partition: Partition, epoch: LeaderEpoch) -> None:
    """Wait until a partition that this broker leads in `epoch` is committed to its present end.

    What is not committed may be lost with this leader, so no coordinator may act on it or tell of
    it before. Raises ApiError.
    """
    partition.check_leader(epoch)
    committed = partition.wait_committed(partition.log.log_end_offset)
    if committed is not None:
        await committed
