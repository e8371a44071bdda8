"""Keeps the group coordinator in step with the metadata: who leads which offsets partition."""

import asyncio

from headrace_broker.metadata.entities import GROUP_METADATA_TOPIC
from headrace_broker.metadata.image import MetadataDelta, MetadataImage
from headrace_broker.protocol.types import NodeId, PartitionIndex
from headrace_broker.server.clock import Clock
from headrace_broker.server.group_driver import GroupCoordinator
from headrace_broker.server.group_driver_log import PartitionOffsetsLog
from headrace_broker.server.replica_manager import ReplicaManager


class GroupMetadataFollower:
    """A subscriber of the controller's image; subscribe it after the replica manager's."""

    def __init__(
        self, groups: GroupCoordinator, replicas: ReplicaManager, node_id: NodeId, clock: Clock
    ) -> None:
        self._groups = groups
        self._replicas = replicas
        self._node_id = node_id
        self._clock = clock
        self._led: set[PartitionIndex] = set()
        self._loading: set[asyncio.Task[None]] = set()

    def __call__(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Load what this broker leads now, unload what it lost, drop deleted topics' offsets."""
        removed = {topic.name for topic in delta.topics_removed.values()}
        if GROUP_METADATA_TOPIC in removed:
            self._lead(set())
        if GROUP_METADATA_TOPIC in delta.topics_changed:
            partitions = image.topics[GROUP_METADATA_TOPIC].partitions
            self._groups.partition_count = len(partitions)
            self._lead(
                {index for index, item in partitions.items() if item.leader == self._node_id}
            )
        if removed - {GROUP_METADATA_TOPIC}:
            self._groups.topics_deleted(removed)

    async def wait_loaded(self) -> None:
        """Return when everything led now is served; used before a broker says it is ready."""
        await asyncio.gather(*self._loading)

    def _lead(self, led: set[PartitionIndex]) -> None:
        for index in self._led - led:
            self._groups.unload(index)
        for index in sorted(led - self._led):
            partition = self._replicas.partition(GROUP_METADATA_TOPIC, index)
            offsets_log = PartitionOffsetsLog(partition, self._clock)
            # Not awaited: metadata must go on being published while a large partition loads.
            task = asyncio.get_running_loop().create_task(self._groups.load(index, offsets_log))
            self._loading.add(task)
            task.add_done_callback(self._loading.discard)
        self._led = led
