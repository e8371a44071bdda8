"""SyncGroup, Heartbeat and LeaveGroup: what members do between two joins."""

from collections.abc import Mapping
from typing import Final

from headrace_broker.coordinator.config import GroupConfig
from headrace_broker.coordinator.decision import Caller, GroupDecision, TimerKind
from headrace_broker.coordinator.group import NO_MEMBER_ID, Group, Member
from headrace_broker.coordinator.rebalance import (
    GroupStep,
    answer_sync,
    drop_member,
    drop_pending_member,
    rebalance_after_removal,
    sync_response,
)
from headrace_broker.coordinator.shard import GroupShard, group_record
from headrace_broker.coordinator.states import GroupState
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace_broker.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from headrace_broker.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from headrace_broker.protocol.types import TimestampMs

_VERSION_THAT_LEAVES_IN_BATCHES: Final = 3


def decide_sync(
    shard: GroupShard,
    config: GroupConfig,
    request: SyncGroupRequest,
    caller: Caller,
    now_ms: TimestampMs,
) -> GroupDecision:
    """Take the leader's assignment, or make a follower wait until it arrives."""
    group = _group_of_member(shard, request.group_id)
    member = group.check_member(request.member_id, request.group_instance_id)
    group.check_generation(request.generation_id)
    _check_protocol(group, request)
    step = GroupStep(shard=shard, group=group, config=config, now_ms=now_ms)
    match group.state:
        case GroupState.COMPLETING_REBALANCE:
            # A client that asks again has given up on its earlier request.
            again = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
            answer_sync(step, member, again)
            assigned = {item.member_id: bytes(item.assignment) for item in request.assignments}
            is_leader = member.member_id == group.leader_id
            if is_leader:
                _check_record_size(group, config, assigned)
            group.awaiting_sync.discard(member.member_id)
            member.sync_ticket = caller.ticket
            if is_leader:
                _assign(step, assigned)
        case GroupState.STABLE:
            group.awaiting_sync.discard(member.member_id)
            step.extend_session(member.member_id, member.session_timeout_ms)
            step.decision.replies.append((caller.ticket, sync_response(group, member)))
        case GroupState.PREPARING_REBALANCE:
            raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS, "the group is rebalancing: join again")
        case _:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, "the group has no members")
    if not group.awaiting_sync:
        step.cancel_timer(TimerKind.SYNC)
    return step.decision


def decide_heartbeat(
    shard: GroupShard, config: GroupConfig, request: HeartbeatRequest, caller: Caller
) -> GroupDecision:
    """Extend a member's session, and tell it when it must join again."""
    group = _group_of_member(shard, request.group_id)
    member = group.check_member(request.member_id, request.group_instance_id)
    group.check_generation(request.generation_id)
    step = GroupStep(shard=shard, group=group, config=config, now_ms=TimestampMs(0))
    error = ErrorCode.NONE
    if group.state is GroupState.PREPARING_REBALANCE:
        error = ErrorCode.REBALANCE_IN_PROGRESS
    step.extend_session(member.member_id, member.session_timeout_ms)
    step.decision.replies.append((caller.ticket, HeartbeatResponse(error_code=error)))
    return step.decision


def decide_leave(
    shard: GroupShard,
    config: GroupConfig,
    request: LeaveGroupRequest,
    caller: Caller,
    now_ms: TimestampMs,
) -> GroupDecision:
    """Remove members; an administrator may remove static ones by instance id alone."""
    group = _group_of_member(shard, request.group_id)
    step = GroupStep(shard=shard, group=group, config=config, now_ms=now_ms)
    is_batch = caller.api_version >= _VERSION_THAT_LEAVES_IN_BATCHES
    leaving = request.members if is_batch else [MemberIdentity(member_id=request.member_id)]
    count_before = len(group.members)
    results = [
        MemberResponse(
            member_id=identity.member_id,
            group_instance_id=identity.group_instance_id,
            error_code=_leave(step, identity),
        )
        for identity in leaving
    ]
    if len(group.members) < count_before:
        rebalance_after_removal(step, _reason_to_leave(leaving))
    response = (
        LeaveGroupResponse(members=results)
        if is_batch
        else LeaveGroupResponse(error_code=results[0].error_code)
    )
    step.decision.replies.append((caller.ticket, response))
    return step.decision


def _reason_to_leave(leaving: list[MemberIdentity]) -> str:
    first = leaving[0]
    name = first.member_id or first.group_instance_id
    others = f" and {len(leaving) - 1} others" if len(leaving) > 1 else ""
    return f"{name}{others} left: {first.reason or 'no reason given'}"


def _leave(step: GroupStep, identity: MemberIdentity) -> ErrorCode:
    group, member_id = step.group, identity.member_id
    if member_id == NO_MEMBER_ID:
        member_id = group.static_members.get(identity.group_instance_id or "", NO_MEMBER_ID)
    elif member_id in group.pending_members:
        drop_pending_member(step, member_id)
        return ErrorCode.NONE
    try:
        member = group.check_member(member_id, identity.group_instance_id)
    except ApiError as error:
        return error.code
    drop_member(step, member, ErrorCode.UNKNOWN_MEMBER_ID)
    return ErrorCode.NONE


def _group_of_member(shard: GroupShard, group_id: str) -> Group:
    if not group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID, "a group id is not empty")
    group = shard.groups.get(group_id)
    if group is None:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group_id} has no members")
    return group


def _check_protocol(group: Group, request: SyncGroupRequest) -> None:
    """Check the protocol that a member assumes was chosen, from version 5 on (KIP-559)."""
    for said, chosen in (
        (request.protocol_type, group.protocol_type),
        (request.protocol_name, group.protocol_name),
    ):
        if said is not None and said != chosen:
            raise ApiError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the group chose {chosen}, not {said}"
            )


def _check_record_size(group: Group, config: GroupConfig, assigned: Mapping[str, bytes]) -> None:
    """Refuse a record that the log would refuse: that would reload all groups of the shard."""
    if group.record_bytes_max(assigned) > config.record_bytes_max:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"members and assignments exceed {config.record_bytes_max} bytes, "
            "which one record of __consumer_offsets holds",
        )


def _assign(step: GroupStep, assigned: Mapping[str, bytes]) -> None:
    """Keep the leader's assignment and pass it to waiting members; others ask for it later."""
    group = step.group
    for member in group.members.values():
        member.assignment = assigned.get(member.member_id, b"")
    group.transition(GroupState.STABLE, step.now_ms)
    step.decision.records.append(group_record(group))
    for member in group.members.values():
        _answer_with_assignment(step, member)


def _answer_with_assignment(step: GroupStep, member: Member) -> None:
    if member.sync_ticket is not None:
        step.extend_session(member.member_id, member.session_timeout_ms)
        answer_sync(step, member, sync_response(step.group, member))
