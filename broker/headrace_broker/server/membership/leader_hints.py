"""KIP-951: the error for a request to the wrong broker names the right one."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from headrace_broker.metadata.entities import TopicImage
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.types import NO_NODE, NodeId, PartitionIndex, TopicId

HINTED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class LeaderHints:
    """The leaders that one response names, with their addresses on one listener."""

    def __init__(self, image: MetadataImage, listener: str, own: NodeId = NO_NODE) -> None:
        """`own`: this broker; it does not name itself when it refuses a client as not leader."""
        self._image = image
        self._listener = listener
        self._own = own
        self.leaders: set[NodeId] = set()

    def leader_of(
        self, topic_id: UUID, name: str, index: int, code: int = ErrorCode.NOT_LEADER_OR_FOLLOWER
    ) -> tuple[int, int]:
        """Return (leader, leader epoch), or (-1, -1) if the leader is unknown."""
        topic: TopicImage | None = (
            self._image.topics.get(name)
            if name
            else self._image.topics_by_id.get(TopicId(topic_id))
        )
        partition = None if topic is None else topic.partitions.get(PartitionIndex(index))
        if partition is None:
            return -1, -1
        if partition.leader == self._own and code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return -1, -1
        if partition.leader >= 0:
            self.leaders.add(partition.leader)
        return partition.leader, partition.leader_epoch

    def endpoints(self) -> Iterator[tuple[int, str, int, str | None]]:
        """Yield (node, host, port, rack) of each leader that was named."""
        for node_id in sorted(self.leaders):
            broker = self._image.brokers.get(node_id)
            endpoint = None if broker is None else broker.endpoint(self._listener)
            if broker is not None and endpoint is not None:
                yield node_id, endpoint.host, endpoint.port, broker.rack
