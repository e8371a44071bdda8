"""The group coordinator of this broker: routes requests to the shards it owns.

Owns which partitions of `__consumer_offsets` this broker leads, and the retention timer; its shards
hold the pending responses. `headrace_broker.coordinator` decides what a request means.
"""

import asyncio
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

from headrace_broker.coordinator import admin, expiry, offsets, protocols
from headrace_broker.coordinator.config import GroupConfig
from headrace_broker.coordinator.consumer.describe import describe_consumer_group
from headrace_broker.coordinator.consumer.group import ConsumerGroup
from headrace_broker.coordinator.consumer.heartbeat import decide_consumer_heartbeat
from headrace_broker.coordinator.consumer.step import ConsumerContext
from headrace_broker.coordinator.decision import (
    Caller,
    GroupDecision,
    InitializeShareState,
    Ticket,
)
from headrace_broker.coordinator.group import Group
from headrace_broker.coordinator.modern.assignment import Partitions
from headrace_broker.coordinator.modern.topics import TopicsView
from headrace_broker.coordinator.partitioning import partition_for_group
from headrace_broker.coordinator.shard import GroupShard
from headrace_broker.coordinator.share.admin import (
    check_empty,
    decide_partitions,
    decide_share_topics_deleted,
    describe_share_group,
    find_or_create_share_group,
    find_share_group,
)
from headrace_broker.coordinator.share.group import ShareGroup
from headrace_broker.coordinator.share.heartbeat import decide_share_heartbeat
from headrace_broker.coordinator.share.member import JOIN_EPOCH
from headrace_broker.coordinator.transactional_offsets import decide_txn_commit
from headrace_broker.log.markers import Marker
from headrace_broker.log.verification import Verification
from headrace_broker.metadata.entities import TopicImage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.consumer_group_describe import (
    DescribedGroup as DescribedConsumerGroup,
)
from headrace_broker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from headrace_broker.protocol.messages.delete_groups import DeletableGroupResult
from headrace_broker.protocol.messages.describe_groups import DescribedGroup
from headrace_broker.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace_broker.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from headrace_broker.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from headrace_broker.protocol.messages.list_groups import ListedGroup, ListGroupsRequest
from headrace_broker.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from headrace_broker.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)
from headrace_broker.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
)
from headrace_broker.protocol.messages.share_group_describe import (
    DescribedGroup as DescribedShareGroup,
)
from headrace_broker.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from headrace_broker.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from headrace_broker.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from headrace_broker.protocol.types import PartitionIndex
from headrace_broker.server.clock import Clock
from headrace_broker.server.groups.group_driver_log import OffsetsLog
from headrace_broker.server.groups.group_driver_shard import (
    Initialize,
    ShardDriver,
    ShardStatus,
)
from headrace_broker.server.groups.group_transactions import (
    commit_transactional,
    write_group_marker,
)
from headrace_broker.server.network.context import RequestContext

_JOIN_WAIT_S: Final = 2.0


async def nothing_made(_: InitializeShareState) -> Mapping[uuid.UUID, frozenset[int]]:
    """The default without a share coordinator: no state is created."""
    return {}


class _GroupRequest(Protocol):
    group_id: str


RequestT = TypeVar("RequestT", bound=_GroupRequest)
ResponseT = TypeVar("ResponseT")


class GroupCoordinator:
    """The groups of this broker. All methods run on the event loop."""

    def __init__(
        self,
        config: GroupConfig,
        clock: Clock,
        *,
        config_of: Callable[[str], GroupConfig] | None = None,
        topics: Callable[[], TopicsView] = TopicsView,
        initialize: Initialize = nothing_made,
    ) -> None:
        """Serve groups.

        `config_of` returns a group's own settings, `topics` what can be assigned, and `initialize`
        creates the state of share partitions.
        """
        self.config = config
        self._config_of = config_of or (lambda _group_id: config)
        self._topics = topics
        self._initialize = initialize
        self.partition_count = config.offsets_topic_partitions
        self._clock = clock
        self._shards: dict[PartitionIndex, ShardDriver] = {}
        self._retention: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to expire offsets by retention."""
        delay_s = self.config.offsets_retention_check_interval_ms / 1000
        self._retention = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def close(self) -> None:
        """Stop serving every partition."""
        if self._retention is not None:
            self._retention.cancel()
        for index in list(self._shards):
            self.unload(index)

    async def load(self, index: PartitionIndex, offsets_log: OffsetsLog) -> None:
        """Become the coordinator of a partition's groups: replay it, then serve it.

        Until it is loaded, which a failing disk may delay, requests for its groups get
        COORDINATOR_LOAD_IN_PROGRESS.
        """
        self.unload(index)
        shard = self._shards[index] = ShardDriver(
            index, offsets_log, self.config, self._clock, self._context, self._initialize
        )
        await shard.load()

    def unload(self, index: PartitionIndex) -> None:
        """Stop being the coordinator of a partition's groups."""
        shard = self._shards.pop(index, None)
        if shard is not None:
            shard.close()

    def partition_for(self, group_id: str) -> PartitionIndex:
        """Return the partition of `__consumer_offsets` that holds a group."""
        return partition_for_group(group_id, self.partition_count)

    async def join_group(
        self, request: JoinGroupRequest, context: RequestContext
    ) -> JoinGroupResponse:
        """Join; returns when the join phase is over. Raises ApiError."""
        return await self._submit(
            JoinGroupResponse, protocols.decide_join, request, context, may_add=True
        )

    async def sync_group(
        self, request: SyncGroupRequest, context: RequestContext
    ) -> SyncGroupResponse:
        """Sync; returns when the leader's assignment has arrived. Raises ApiError."""
        return await self._submit(SyncGroupResponse, protocols.decide_sync, request, context)

    def heartbeat(self, request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
        """Extend a session. Raises ApiError."""
        shard = self._shard_of(request.group_id)
        return shard.submit_now(
            HeartbeatResponse,
            lambda ticket: protocols.decide_heartbeat(
                shard.shard, request, _caller(ticket, context), self._context(request.group_id)
            ),
        )

    async def leave_group(
        self, request: LeaveGroupRequest, context: RequestContext
    ) -> LeaveGroupResponse:
        """Leave. Raises ApiError."""
        return await self._submit(LeaveGroupResponse, protocols.decide_leave, request, context)

    async def consumer_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, context: RequestContext
    ) -> ConsumerGroupHeartbeatResponse:
        """Join, keep or leave a consumer group (KIP-848). Raises ApiError."""
        return await self._submit(
            ConsumerGroupHeartbeatResponse,
            decide_consumer_heartbeat,
            request,
            context,
            may_add=True,
        )

    async def describe_consumer_group(self, group_id: str) -> DescribedConsumerGroup:
        """Describe one consumer group. Raises ApiError."""
        shard = self._shard_of(group_id)
        scene = self._context(group_id)
        return await shard.submit(
            DescribedConsumerGroup,
            lambda ticket: _answer(
                ticket,
                describe_consumer_group(shard.shard, group_id, scene.config.consumer, scene.topics),
            ),
        )

    async def share_heartbeat(
        self, request: ShareGroupHeartbeatRequest, context: RequestContext
    ) -> ShareGroupHeartbeatResponse:
        """Join, keep or leave a share group (KIP-932). Raises ApiError.

        A joining member waits briefly until the state of its partitions is initialized: its next
        heartbeat is seconds away.
        """
        shard = self._shard_of(request.group_id)

        async def decide() -> ShareGroupHeartbeatResponse:
            scene = self._context(request.group_id)
            return await shard.submit(
                ShareGroupHeartbeatResponse,
                lambda ticket: decide_share_heartbeat(
                    shard.shard, request, self._newcomer(ticket, context), scene
                ),
            )

        response = await decide()
        if request.member_epoch == JOIN_EPOCH and await shard.wait_initialized(
            request.group_id, _JOIN_WAIT_S
        ):
            return await decide()
        return response

    async def describe_share_group(self, group_id: str) -> DescribedShareGroup:
        """Describe one share group. Raises ApiError."""
        shard = self._shard_of(group_id)
        topics = self._topics()
        return await shard.submit(
            DescribedShareGroup,
            lambda ticket: _answer(ticket, describe_share_group(shard.shard, group_id, topics)),
        )

    def share_group(self, group_id: str) -> ShareGroup | None:
        """Return a share group, for reading only; None if there is none of that kind and name."""
        shard = self._shard_of(group_id)
        shard.check_active()
        return shard.shard.share_groups.get(group_id)

    def share_group_to_alter(self, group_id: str) -> ShareGroup:
        """Return a share group, or an empty new one. Raises ApiError."""
        shard = self._shard_of(group_id)
        shard.check_active()
        return self._find_or_create(shard.shard, group_id)

    def _find_or_create(self, shard: GroupShard, group_id: str) -> ShareGroup:
        return find_or_create_share_group(shard, group_id, has_room=self._has_room)

    async def note_share_partitions(
        self,
        group_id: str,
        names: Mapping[uuid.UUID, str],
        made: Partitions,
        gone: Collection[uuid.UUID] = (),
    ) -> None:
        """Record that an administrator created or deleted state of an empty share group.

        Creating state for a group that does not exist creates the group (GroupCoordinatorShard).
        """
        shard = self._shard_of(group_id)

        def decide(ticket: Ticket) -> GroupDecision:
            find = self._find_or_create if made else find_share_group
            group = find(shard.shard, group_id)
            check_empty(group)
            decision = decide_partitions(group, names, made, gone)
            decision.replies.append((ticket, group_id))
            return decision

        await shard.submit(str, decide)

    async def commit_offsets(
        self,
        request: OffsetCommitRequest,
        context: RequestContext,
        check_partition: offsets.PartitionCheck,
    ) -> OffsetCommitResponse:
        """Commit; returns when the offsets are committed in the log. Raises ApiError."""
        shard = self._shard_of(request.group_id)
        now_ms = self._clock.now_ms()
        return await shard.submit(
            OffsetCommitResponse,
            lambda ticket: offsets.decide_commit(
                shard.shard,
                self.config,
                request,
                self._newcomer(ticket, context),
                now_ms,
                check_partition,
            ),
        )

    async def commit_transactional(
        self,
        request: TxnOffsetCommitRequest,
        context: RequestContext,
        check_partition: offsets.PartitionCheck,
        verification: Verification,
    ) -> TxnOffsetCommitResponse:
        """Commit with a transaction; returns when the offsets are in the log. Raises ApiError."""
        shard = self._shard_of(request.group_id)
        now_ms = self._clock.now_ms()
        return await commit_transactional(
            shard,
            request,
            lambda ticket: decide_txn_commit(
                shard.shard,
                self.config,
                request,
                self._newcomer(ticket, context),
                now_ms,
                check_partition,
            ),
            verification,
        )

    async def write_marker(self, index: PartitionIndex, marker: Marker) -> None:
        """End a transaction in a partition of `__consumer_offsets`. Raises ApiError."""
        shard = self._shards.get(index)
        if shard is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker does not coordinate it")
        await write_group_marker(shard, marker)

    async def fetch_offsets(
        self,
        request: OffsetFetchRequestGroup,
        topic_id_of: Callable[[str], uuid.UUID],
        *,
        require_stable: bool,
    ) -> OffsetFetchResponseGroup:
        """Read a group's committed offsets; an offset still being committed is not among them."""
        shard = self._shard_of(request.group_id)
        return await shard.submit(
            OffsetFetchResponseGroup,
            lambda ticket: _answer(
                ticket,
                offsets.read_offsets(
                    shard.shard, request, topic_id_of, require_stable=require_stable
                ),
            ),
        )

    async def delete_offsets(
        self,
        request: OffsetDeleteRequest,
        context: RequestContext,
        has_topic: Callable[[str], bool],
    ) -> OffsetDeleteResponse:
        """Delete committed offsets. Raises ApiError."""
        shard = self._shard_of(request.group_id)
        return await shard.submit(
            OffsetDeleteResponse,
            lambda ticket: offsets.decide_offset_delete(
                shard.shard, request, _caller(ticket, context), has_topic
            ),
        )

    def list_groups(self, request: ListGroupsRequest) -> list[ListedGroup]:
        """Return the groups of this broker; raise ApiError while some are still loading."""
        for shard in self._shards.values():
            shard.check_active()
        return [
            listed
            for shard in self._shards.values()
            for listed in admin.list_groups(shard.shard, request)
        ]

    async def describe_group(self, group_id: str, context: RequestContext) -> DescribedGroup:
        """Describe one group. Raises ApiError."""
        shard = self._shard_of(group_id)
        return await shard.submit(
            DescribedGroup,
            lambda ticket: _answer(
                ticket, admin.describe_group(shard.shard, group_id, context.api_version)
            ),
        )

    async def delete_group(self, group_id: str, context: RequestContext) -> DeletableGroupResult:
        """Delete one empty group with its offsets. Raises ApiError."""
        shard = self._shard_of(group_id)
        return await shard.submit(
            DeletableGroupResult,
            lambda ticket: admin.decide_delete_group(
                shard.shard, group_id, _caller(ticket, context)
            ),
        )

    def topics_deleted(self, topics: Collection[TopicImage]) -> None:
        """Delete the offsets of deleted topics, and their partitions in share groups."""
        names = {topic.name for topic in topics}
        topic_ids = {topic.topic_id for topic in topics}
        for shard in self._active_shards() if names else ():
            decision = expiry.decide_topics_deleted(shard.shard, names)
            decision.records.extend(decide_share_topics_deleted(shard.shard, topic_ids))
            shard.expect_nothing(decision)

    def groups_snapshot(self) -> list[offsets.CommittedOffset]:
        """Return every committed offset of this broker's groups, for metrics."""
        return [
            offset
            for shard in self._active_shards()
            for offset in offsets.committed_offsets(shard.shard)
        ]

    def groups(self) -> list[Group | ConsumerGroup | ShareGroup]:
        """Return this broker's groups of all kinds, for reading only."""
        found: list[Group | ConsumerGroup | ShareGroup] = []
        for shard in self._active_shards():
            found += shard.shard.groups.values()
            found += shard.shard.consumer_groups.values()
            found += shard.shard.share_groups.values()
        return found

    async def _submit(
        self,
        response: type[ResponseT],
        decide: Callable[[GroupShard, RequestT, Caller, ConsumerContext], GroupDecision],
        request: RequestT,
        context: RequestContext,
        *,
        may_add: bool = False,
    ) -> ResponseT:
        """Decide on a member's request; `may_add` if it may add a member or a group."""
        shard = self._shard_of(request.group_id)
        scene = self._context(request.group_id)
        caller = self._newcomer if may_add else _caller
        return await shard.submit(
            response, lambda ticket: decide(shard.shard, request, caller(ticket, context), scene)
        )

    def _context(self, group_id: str) -> ConsumerContext:
        return ConsumerContext(
            config=self._config_of(group_id), topics=self._topics(), now_ms=self._clock.now_ms()
        )

    def _active_shards(self) -> list[ShardDriver]:
        return [item for item in self._shards.values() if item.status is ShardStatus.ACTIVE]

    def _shard_of(self, group_id: str) -> ShardDriver:
        shard = self._shards.get(self.partition_for(group_id))
        if shard is None:
            raise ApiError(ErrorCode.NOT_COORDINATOR, "this broker does not coordinate the group")
        return shard

    def _newcomer(self, ticket: Ticket, context: RequestContext) -> Caller:
        """Return a caller that may add a member or a group."""
        return replace(
            _caller(ticket, context),
            new_member_id=str(uuid.uuid4()),
            room_for_a_group=self._has_room,
        )

    @property
    def _has_room(self) -> bool:
        count = sum(shard.shard.group_count for shard in self._shards.values())
        return count < self.config.groups_max

    def _expire(self) -> None:
        now_ms = self._clock.now_ms()
        for shard in self._active_shards():
            shard.expect_nothing(expiry.decide_expiry(shard.shard, self.config, now_ms))
        self.start()


def _caller(ticket: Ticket, context: RequestContext) -> Caller:
    return Caller(
        ticket=ticket,
        api_version=context.api_version,
        client_id=context.client_id or "",
        client_host=f"/{context.client_address}",  # as Java formats an address
    )


def _answer(ticket: Ticket, response: Any) -> GroupDecision:
    return GroupDecision(replies=[(ticket, response)])
