"""How members leave a consumer group: by request, by session timeout, or by being fenced."""

from collections.abc import Collection
from dataclasses import replace

from headrace_broker.coordinator.consumer.member import STATIC_LEAVE_EPOCH, ConsumerMember
from headrace_broker.coordinator.consumer.migration import downgrade, may_downgrade
from headrace_broker.coordinator.consumer.records import (
    epoch_record,
    member_tombstones,
    regex_record,
)
from headrace_broker.coordinator.consumer.states import MemberState
from headrace_broker.coordinator.consumer.step import ConsumerContext, ConsumerStep
from headrace_broker.coordinator.decision import Caller, GroupDecision, TimerKey, TimerKind
from headrace_broker.coordinator.modern.assignment import NO_PARTITIONS
from headrace_broker.coordinator.shard import GroupShard
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


def decide_leave(
    shard: GroupShard,
    request: ConsumerGroupHeartbeatRequest,
    caller: Caller,
    context: ConsumerContext,
) -> GroupDecision:
    """Remove a member, or let a static one leave temporarily and keep its partitions."""
    group = shard.consumer_groups.get(request.group_id)
    if group is None:
        raise ApiError(
            ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} is not a consumer group."
        )
    step = ConsumerStep(shard=shard, group=group, context=context)
    if request.instance_id is None:
        member = group.check_member(request.member_id)
    else:
        member = group.check_static_member(request.instance_id, request.member_id)
    if request.member_epoch == STATIC_LEAVE_EPOCH:
        # Its session continues: if no new incarnation joins in time, the place is lost.
        away = replace(
            member.at_epoch(STATIC_LEAVE_EPOCH),
            state=MemberState.STABLE,
            revoking=NO_PARTITIONS,
        )
        step.cancel_timers(member.member_id, TimerKind.REVOCATION)
        step.emit([away.assignment_record(group.group_id)])
    else:
        remove_members(step, [member])
    answer = ConsumerGroupHeartbeatResponse(
        member_id=request.member_id, member_epoch=request.member_epoch
    )
    step.decision.replies.append((caller.ticket, answer))
    return step.decision


def remove_members(step: ConsumerStep, leaving: Collection[ConsumerMember]) -> None:
    """Remove members and bump the epoch: any member's next heartbeat reassigns their partitions.

    If only classic members are left, the group becomes a classic one.
    """
    group = step.group
    for member in leaving:
        step.cancel_timers(member.member_id, *TimerKind)
    gone = {member.member_id for member in leaving}
    if may_downgrade(group, gone, step.context.config):
        downgrade(step, gone)
        return
    for member in leaving:
        step.emit(member_tombstones(group.group_id, member.member_id))
    left = {item.subscription for key, item in group.members.items() if key not in gone}
    patterns = {pattern for _, pattern in left}
    for pattern in group.patterns() - patterns:
        if pattern in group.regexes:
            step.emit([regex_record(group.group_id, pattern, None)])
    metadata_hash = step.context.topics.metadata_hash(group.names_of_all(left))
    step.emit([epoch_record(group.group_id, group.epoch + 1, metadata_hash)])


def decide_consumer_timer(
    shard: GroupShard, key: TimerKey, context: ConsumerContext
) -> GroupDecision:
    """Fence a member whose session expired, or that did not revoke partitions in time."""
    group = shard.consumer_groups.get(key.group_id)
    member = None if group is None else group.members.get(key.member_id)
    if group is None or member is None:
        return GroupDecision()
    if key.kind is TimerKind.REVOCATION and member.state is not MemberState.UNREVOKED_PARTITIONS:
        return GroupDecision()
    step = ConsumerStep(shard=shard, group=group, context=context)
    remove_members(step, [member])
    return step.decision
