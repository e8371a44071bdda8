"""`ShareAdministration`: what administrators read and change in share groups' partitions.

Runs on the group's coordinator: it knows the group's partitions, asks the share coordinators for
their state, and the leaders for their log ends.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from headrace_broker.coordinator.share.admin import check_empty
from headrace_broker.coordinator.share_state.state import ShareKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from headrace_broker.protocol.types import NO_NODE, NodeId, PartitionIndex, TopicId
from headrace_broker.server.peers.peer_connection import PeerUnavailable

if TYPE_CHECKING:
    from headrace_broker.coordinator.share.group import ShareGroup
    from headrace_broker.metadata.image import MetadataImage
    from headrace_broker.server.groups.group_driver import GroupCoordinator
    from headrace_broker.server.partitions.replica_manager import ReplicaManager
    from headrace_broker.server.peers.peers import PeerConnections
    from headrace_broker.server.shares.persister import Persister

_UNKNOWN: Final = -1
_LATEST: Final = -1
_TIMEOUT_MS: Final = 2000

Where = tuple[str, int]


@dataclass(slots=True, kw_only=True)
class SharePosition:
    """A group's position in a partition; -1 for values that are not known."""

    topic_id: UUID
    start_offset: int = _UNKNOWN
    leader_epoch: int = 0
    lag: int = _UNKNOWN
    error: ApiError | None = None


class ShareAdministration:
    """One broker's administration. All methods raise ApiError for a group that is not here."""

    def __init__(
        self,
        node_id: NodeId,
        groups: GroupCoordinator,
        persister: Persister,
        replicas: ReplicaManager,
        peers: PeerConnections,
        image: Callable[[], MetadataImage],
    ) -> None:
        self._node_id = node_id
        self._groups = groups
        self._persister = persister
        self._replicas = replicas
        self._peers = peers
        self._image = image

    def find(self, group_id: str) -> ShareGroup:
        """Return a share group; raise GROUP_ID_NOT_FOUND."""
        group = self._groups.share_group(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group

    async def positions(
        self, group_id: str, topics: Mapping[str, Sequence[int]] | None
    ) -> dict[Where, SharePosition]:
        """Return a group's positions in some partitions, or in all that it has state of."""
        group = self.find(group_id)
        if topics is None:
            topics = {name: sorted(items) for name, items in group.initialized.values()}
        found: dict[Where, SharePosition] = {}
        for name, indexes in topics.items():
            topic = self._image().topics.get(name)
            for index in indexes:
                where = (name, index)
                found[where] = SharePosition(topic_id=UUID(int=0))
                if topic is None or index not in topic.partitions:
                    found[where].error = ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                else:
                    found[where].topic_id = topic.topic_id
        wanted = [where for where, item in found.items() if item.error is None]
        counts = dict(
            zip(
                wanted,
                await asyncio.gather(
                    *(self._summarize(group_id, where, found[where]) for where in wanted)
                ),
                strict=True,
            )
        )
        ends = await self._end_offsets(
            [where for where in wanted if found[where].start_offset >= 0]
        )
        for where, end in ends.items():
            start = found[where].start_offset
            found[where].lag = max(0, end - start - max(0, counts[where]))
        return found

    async def _summarize(self, group_id: str, where: Where, position: SharePosition) -> int:
        key = ShareKey(group_id=group_id, topic_id=position.topic_id, partition=where[1])
        try:
            state = await self._persister.summarize(key)
        except ApiError as error:
            position.error = error
            return 0
        position.start_offset = state.start_offset
        position.leader_epoch = max(0, state.leader_epoch)
        return state.complete_count

    async def _end_offsets(self, wanted: Iterable[Where]) -> dict[Where, int]:
        """Return the leaders' high watermarks."""
        found: dict[Where, int] = {}
        elsewhere: dict[NodeId, list[Where]] = defaultdict(list)
        for topic, index in wanted:
            partition = self._image().partition(topic, PartitionIndex(index))
            if partition is None or partition.leader == NO_NODE:
                continue
            if partition.leader == self._node_id:
                here = self._replicas.partitions_of(topic).get(index)
                if here is not None:
                    found[topic, index] = here.high_watermark
            else:
                elsewhere[partition.leader].append((topic, index))
        for answers in await asyncio.gather(*(self._ask(*item) for item in elsewhere.items())):
            found.update(answers)
        return found

    async def _ask(self, leader: NodeId, wanted: list[Where]) -> dict[Where, int]:
        topics: dict[str, ListOffsetsTopic] = {}
        for name, index in wanted:
            topic = topics.setdefault(name, ListOffsetsTopic(name=name))
            topic.partitions.append(ListOffsetsPartition(partition_index=index, timestamp=_LATEST))
        request = ListOffsetsRequest(
            replica_id=-1, topics=list(topics.values()), timeout_ms=_TIMEOUT_MS
        )
        try:
            response = await self._peers.send(leader, request, timeout_ms=_TIMEOUT_MS)
        except PeerUnavailable:
            return {}
        return {
            (topic.name, item.partition_index): item.offset
            for topic in response.topics
            for item in topic.partitions
            if item.error_code == ErrorCode.NONE
        }

    async def alter(
        self, group_id: str, offsets: Mapping[Where, int]
    ) -> dict[Where, ApiError | None]:
        """Set the start offsets of an empty group's partitions; create the group if there is none.

        Raises NON_EMPTY_GROUP, and GROUP_ID_NOT_FOUND for a group of another kind.
        """
        group = self._groups.share_group_to_alter(group_id)
        check_empty(group)
        outcomes: dict[Where, ApiError | None] = {}
        made: dict[UUID, frozenset[int]] = {}
        names: dict[UUID, str] = {}
        for (name, index), offset in offsets.items():
            topic = self._image().topics.get(name)
            outcomes[name, index] = None
            if topic is None or index not in topic.partitions or offset < 0:
                code = ErrorCode.INVALID_REQUEST
                if offset >= 0:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                outcomes[name, index] = ApiError(code, f"{name}-{index} at {offset}")
                continue
            key = ShareKey(group_id=group_id, topic_id=topic.topic_id, partition=index)
            try:
                await self._persister.initialize(key, group.epoch + 1, offset)
            except ApiError as error:
                outcomes[name, index] = error
                continue
            names[topic.topic_id] = name
            made[topic.topic_id] = made.get(topic.topic_id, frozenset()) | {index}
        if made:
            await self._groups.note_share_partitions(group_id, names, made)
        return outcomes

    async def delete(self, group_id: str, topics: Sequence[str]) -> dict[str, ApiError | None]:
        """Delete an empty group's state of topics. Raises NON_EMPTY_GROUP."""
        group = self.find(group_id)
        check_empty(group)
        outcomes: dict[str, ApiError | None] = {}
        gone: list[UUID] = []
        by_name = {name: topic_id for topic_id, (name, _) in group.initialized.items()}
        for name in topics:
            topic_id = by_name.get(name)
            if topic_id is None:
                outcomes[name] = ApiError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no offset of it to delete."
                )
                continue
            try:
                await self._delete_state(group_id, topic_id, group.initialized[topic_id][1])
            except ApiError as error:
                outcomes[name] = error
            else:
                outcomes[name] = None
                gone.append(topic_id)
        if gone:
            await self._groups.note_share_partitions(group_id, {}, {}, gone)
        return outcomes

    async def delete_all(self, group_id: str) -> None:
        """Delete the state of an empty share group before the group; other groups are skipped."""
        group = self._groups.share_group(group_id)
        if group is None:
            return
        check_empty(group)
        for partitions in (group.initialized, group.initializing):
            for topic_id, (_, items) in list(partitions.items()):
                if TopicId(topic_id) in self._image().topics_by_id:
                    await self._delete_state(group_id, topic_id, items)

    async def _delete_state(self, group_id: str, topic_id: UUID, items: Iterable[int]) -> None:
        await asyncio.gather(
            *(
                self._persister.delete(
                    ShareKey(group_id=group_id, topic_id=topic_id, partition=index)
                )
                for index in items
            )
        )
