"""`Shares`: this node's parts of share groups (KIP-932), put together.

They are the coordinator of share partitions' state, the client of other brokers' coordinators, the
share partitions that this broker leads, and the functions for administrators.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

import structlog

from headrace_broker.coordinator.share_state.state import UNINITIALIZED, ShareKey
from headrace_broker.metadata.entities import SHARE_GROUP_STATE_TOPIC
from headrace_broker.protocol.errors import ApiError
from headrace_broker.server.partitions.elections import Elections
from headrace_broker.server.shares.administration import ShareAdministration
from headrace_broker.server.shares.dead_letters import DeadLetterWriter, Node
from headrace_broker.server.shares.persister import Persister
from headrace_broker.server.shares.share_partitions import SharePartitions
from headrace_broker.server.shares.share_sessions import ShareSessions
from headrace_broker.server.shares.share_settings import ShareConfigs
from headrace_broker.server.shares.state_coordinator import ShareCoordinator
from headrace_broker.server.shares.state_log import PartitionShareStateLog

if TYPE_CHECKING:
    from headrace_broker.coordinator.decision import InitializeShareState
    from headrace_broker.metadata.image import MetadataDelta, MetadataImage
    from headrace_broker.server.groups.group_driver import GroupCoordinator
    from headrace_broker.server.partitions.partition import Partition

log = structlog.get_logger(__name__)


class Shares:
    """One node's parts of share groups."""

    administration: ShareAdministration

    def __init__(self, node: Node, ensure_topic: Callable[[str], Awaitable[None]]) -> None:
        """`ensure_topic` creates one of the internal topics unless it exists."""
        self._node = node
        values = node.config.values
        self.coordinator = ShareCoordinator(values, node.clock, lambda: node.metadata)
        self.persister = Persister(
            node.config.node_id,
            self.coordinator,
            node.peers,
            lambda: node.metadata,
            ensure_topic,
            values["share.coordinator.write.timeout.ms"],
        )
        configs = ShareConfigs(values, lambda: node.metadata)
        self.partitions = SharePartitions(
            node.replicas,
            self.persister,
            node.clock,
            configs,
            ShareSessions(
                values["group.share.max.share.sessions"],
                values["headrace.fetch.session.max.partitions"],
            ),
            DeadLetterWriter(node, configs.of),
        )
        self.elections = Elections(
            SHARE_GROUP_STATE_TOPIC, node.replicas, self._load, self.coordinator.unload
        )

    async def _load(self, partition: Partition) -> None:
        self.coordinator.load(partition.index, PartitionShareStateLog(partition, self._node.clock))

    def administer(self, groups: GroupCoordinator) -> None:
        """Serve the administrators of these groups."""
        node = self._node
        self.administration = ShareAdministration(
            node.config.node_id,
            groups,
            self.persister,
            node.replicas,
            node.peers,
            lambda: node.metadata,
        )

    def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Apply metadata changes; elections are handled by their owner."""
        if SHARE_GROUP_STATE_TOPIC in delta.topics_changed:
            # The topic's actual partition count decides where state lives, not the present setting.
            count = len(image.topics[SHARE_GROUP_STATE_TOPIC].partitions)
            self.coordinator.partition_count = count
        self.partitions.leaders_changed()
        if delta.topics_removed:
            self.coordinator.topics_deleted(
                [topic.topic_id for topic in delta.topics_removed.values()]
            )

    def close(self) -> None:
        """Stop everything."""
        self.partitions.close()
        self.coordinator.close()

    async def initialize(self, wanted: InitializeShareState) -> Mapping[UUID, frozenset[int]]:
        """Have the state of partitions created; return those that have it: others are retried.

        The partitions' leaders choose the start offsets.
        """
        made: dict[UUID, frozenset[int]] = {}

        async def initialize(topic_id: UUID, index: int) -> None:
            key = ShareKey(group_id=wanted.group_id, topic_id=topic_id, partition=index)
            try:
                await self.persister.initialize(key, wanted.state_epoch, UNINITIALIZED)
            except ApiError as error:
                log.warning("share state not initialized", key=str(key), error=str(error))
            else:
                made[topic_id] = made.get(topic_id, frozenset()) | {index}

        await asyncio.gather(
            *(
                initialize(topic_id, index)
                for topic_id, items in wanted.partitions.items()
                for index in items
            )
        )
        return made
