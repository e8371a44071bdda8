"""The group coordinator of this broker: routes requests to the shards it owns.

Owns which partitions of `__consumer_offsets` are led here, the retention timer, and the answers'
futures by way of its shards. What a request means is decided by `headrace_broker.coordinator`.
"""

import asyncio
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from headrace_broker.coordinator import admin, expiry, join, membership, offsets
from headrace_broker.coordinator.config import GroupConfig
from headrace_broker.coordinator.decision import Caller, Decision, Ticket
from headrace_broker.coordinator.group import Group
from headrace_broker.coordinator.partitioning import partition_for_group
from headrace_broker.protocol.errors import ApiError, ErrorCode
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
from headrace_broker.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from headrace_broker.protocol.types import PartitionIndex
from headrace_broker.server.clock import Clock
from headrace_broker.server.context import RequestContext
from headrace_broker.server.group_driver_log import OffsetsLog
from headrace_broker.server.group_driver_shard import ShardDriver, ShardStatus

_MESSAGE_MAX_BYTES = 1024 * 1024 + 12  # Kafka's default, which a broker's file need not name
_BATCH_OVERHEAD_BYTES = 1024


def group_config(values: Mapping[str, Any]) -> GroupConfig:
    """Return the coordinator's settings out of a broker's."""
    return GroupConfig(
        session_timeout_ms_min=values["group.min.session.timeout.ms"],
        session_timeout_ms_max=values["group.max.session.timeout.ms"],
        initial_rebalance_delay_ms=values["group.initial.rebalance.delay.ms"],
        group_size_max=values["group.max.size"],
        offset_metadata_bytes_max=values["offset.metadata.max.bytes"],
        offsets_retention_ms=values["offsets.retention.minutes"] * 60_000,
        offsets_retention_check_interval_ms=values["offsets.retention.check.interval.ms"],
        offsets_topic_partitions=values["offsets.topic.num.partitions"],
        groups_max=values["headrace.max.groups"],
        record_bytes_max=values.get("message.max.bytes", _MESSAGE_MAX_BYTES)
        - _BATCH_OVERHEAD_BYTES,
    )


class GroupCoordinator:
    """The groups of this broker. All methods are called on the event loop."""

    def __init__(self, config: GroupConfig, clock: Clock) -> None:
        self.config = config
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

        Until it is loaded, which a failing disk delays, its groups are answered
        COORDINATOR_LOAD_IN_PROGRESS.
        """
        self.unload(index)
        shard = self._shards[index] = ShardDriver(index, offsets_log, self.config, self._clock)
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
        shard = self._shard_of(request.group_id)
        now_ms = self._clock.now_ms()
        return await shard.submit(
            JoinGroupResponse,
            lambda ticket: join.decide_join(
                shard.shard, self.config, request, self._newcomer(ticket, context), now_ms
            ),
        )

    async def sync_group(
        self, request: SyncGroupRequest, context: RequestContext
    ) -> SyncGroupResponse:
        """Sync; returns when the leader's assignment is there. Raises ApiError."""
        shard = self._shard_of(request.group_id)
        now_ms = self._clock.now_ms()
        return await shard.submit(
            SyncGroupResponse,
            lambda ticket: membership.decide_sync(
                shard.shard, self.config, request, _caller(ticket, context), now_ms
            ),
        )

    def heartbeat(self, request: HeartbeatRequest, context: RequestContext) -> HeartbeatResponse:
        """Extend a session. Raises ApiError."""
        shard = self._shard_of(request.group_id)
        return shard.submit_now(
            HeartbeatResponse,
            lambda ticket: membership.decide_heartbeat(
                shard.shard, self.config, request, _caller(ticket, context)
            ),
        )

    async def leave_group(
        self, request: LeaveGroupRequest, context: RequestContext
    ) -> LeaveGroupResponse:
        """Leave. Raises ApiError."""
        shard = self._shard_of(request.group_id)
        now_ms = self._clock.now_ms()
        return await shard.submit(
            LeaveGroupResponse,
            lambda ticket: membership.decide_leave(
                shard.shard, self.config, request, _caller(ticket, context), now_ms
            ),
        )

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

    async def fetch_offsets(
        self,
        request: OffsetFetchRequestGroup,
        topic_id_of: Callable[[str], uuid.UUID],
        *,
        require_stable: bool,
    ) -> OffsetFetchResponseGroup:
        """Read a group's committed offsets, never one that is not committed yet."""
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

    def topics_deleted(self, topics: Collection[str]) -> None:
        """End the offsets of topics that were deleted."""
        for shard in self._active_shards():
            shard.expect_nothing(expiry.decide_topics_deleted(shard.shard, topics))

    def groups_snapshot(self) -> list[offsets.CommittedOffset]:
        """Return every committed offset of this broker's groups, for metrics."""
        return [
            offset
            for shard in self._active_shards()
            for offset in offsets.committed_offsets(shard.shard)
        ]

    def groups(self) -> list[Group]:
        """Return this broker's groups, to be read only."""
        return [group for shard in self._active_shards() for group in shard.shard.groups.values()]

    def _active_shards(self) -> list[ShardDriver]:
        return [item for item in self._shards.values() if item.status is ShardStatus.ACTIVE]

    def _shard_of(self, group_id: str) -> ShardDriver:
        shard = self._shards.get(self.partition_for(group_id))
        if shard is None:
            raise ApiError(ErrorCode.NOT_COORDINATOR, "this broker does not coordinate the group")
        return shard

    def _newcomer(self, ticket: Ticket, context: RequestContext) -> Caller:
        """Return a caller who may bring a new member or a new group."""
        count = sum(len(shard.shard.groups) for shard in self._shards.values())
        return replace(
            _caller(ticket, context),
            new_member_id=str(uuid.uuid4()),
            room_for_a_group=count < self.config.groups_max,
        )

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
        client_host=f"/{context.client_address}",  # as Java prints an address
    )


def _answer(ticket: Ticket, response: Any) -> Decision:
    return Decision(replies=[(ticket, response)])
