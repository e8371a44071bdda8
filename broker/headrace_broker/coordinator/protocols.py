"""Routes the classic protocol's requests to the group, of whichever kind it is.

A member that speaks the classic protocol need not know that its group became a consumer group
(KIP-848): its requests mean the same there.
"""

from headrace_broker.coordinator import join, membership, timers
from headrace_broker.coordinator.consumer import classic_members
from headrace_broker.coordinator.consumer.leaving import decide_consumer_timer
from headrace_broker.coordinator.consumer.records import group_tombstones
from headrace_broker.coordinator.consumer.step import ConsumerContext
from headrace_broker.coordinator.decision import Caller, GroupDecision, TimerKey
from headrace_broker.coordinator.shard import GroupShard
from headrace_broker.coordinator.share.heartbeat import decide_share_timer
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.heartbeat import HeartbeatRequest
from headrace_broker.protocol.messages.join_group import JoinGroupRequest
from headrace_broker.protocol.messages.leave_group import LeaveGroupRequest
from headrace_broker.protocol.messages.sync_group import SyncGroupRequest


def decide_join(
    shard: GroupShard, request: JoinGroupRequest, caller: Caller, context: ConsumerContext
) -> GroupDecision:
    """Join a group of either kind; a consumer group without members becomes a classic one."""
    config = context.config
    shard.check_no_share_group(request.group_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    group = shard.consumer_groups.get(request.group_id)
    if group is None:
        return join.decide_join(shard, config, request, caller, context.now_ms)
    join.check_request(config, request)
    if group.members:
        return classic_members.join_consumer_group(shard, request, caller, context)
    decision = join.decide_join(shard, config, request, caller, context.now_ms)
    decision.records[:0] = group_tombstones(group)
    del shard.consumer_groups[request.group_id]
    return decision


def decide_sync(
    shard: GroupShard, request: SyncGroupRequest, caller: Caller, context: ConsumerContext
) -> GroupDecision:
    """Ask for the assignment, in a group of either kind."""
    if request.group_id in shard.consumer_groups:
        return classic_members.sync_consumer_group(shard, request, caller, context)
    return membership.decide_sync(shard, context.config, request, caller, context.now_ms)


def decide_heartbeat(
    shard: GroupShard, request: HeartbeatRequest, caller: Caller, context: ConsumerContext
) -> GroupDecision:
    """Keep a membership alive, in a group of either kind."""
    if request.group_id in shard.consumer_groups:
        return classic_members.heartbeat_consumer_group(shard, request, caller, context)
    return membership.decide_heartbeat(shard, context.config, request, caller)


def decide_leave(
    shard: GroupShard, request: LeaveGroupRequest, caller: Caller, context: ConsumerContext
) -> GroupDecision:
    """Leave a group of either kind."""
    if request.group_id in shard.consumer_groups:
        return classic_members.leave_consumer_group(shard, request, caller, context)
    return membership.decide_leave(shard, context.config, request, caller, context.now_ms)


def decide_timer(shard: GroupShard, key: TimerKey, context: ConsumerContext) -> GroupDecision:
    """Decide what an expired timer means."""
    if key.group_id in shard.share_groups:
        return decide_share_timer(shard, key, context)
    if key.group_id in shard.consumer_groups:
        return decide_consumer_timer(shard, key, context)
    return timers.decide_timer(shard, context.config, key, context.now_ms)
