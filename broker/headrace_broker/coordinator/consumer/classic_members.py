"""Members that speak the classic protocol in a consumer group, while it is being moved over.

To them the group looks like one that always rebalances with a single member: JoinGroup takes their
subscription and one step of their reconciliation and is answered at once, SyncGroup returns their
assignment, and a heartbeat says when they must join again. Eager members revoke all partitions each
time.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from headrace_broker.coordinator.consumer.embedded import (
    EmbeddedSubscription,
    encode_assignment,
    read_subscription,
)
from headrace_broker.coordinator.consumer.group import ConsumerGroup
from headrace_broker.coordinator.consumer.heartbeat import replace_static_member
from headrace_broker.coordinator.consumer.leaving import remove_members
from headrace_broker.coordinator.consumer.member import (
    ClassicFace,
    ConsumerMember,
    common_classic_protocols,
)
from headrace_broker.coordinator.consumer.migration import downgrade, may_downgrade
from headrace_broker.coordinator.consumer.states import MemberState
from headrace_broker.coordinator.consumer.step import (
    ConsumerContext,
    ConsumerStep,
    MemberUpdate,
    update_member,
)
from headrace_broker.coordinator.decision import Caller, GroupDecision, TimerKind
from headrace_broker.coordinator.group import CONSUMER_PROTOCOL_TYPE, NO_MEMBER_ID
from headrace_broker.coordinator.shard import GroupShard
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace_broker.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from headrace_broker.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from headrace_broker.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_VERSION_THAT_ASKS_FOR_A_KNOWN_MEMBER_ID: Final = 4
_VERSION_THAT_LEAVES_IN_BATCHES: Final = 3


def join_consumer_group(
    shard: GroupShard, request: JoinGroupRequest, caller: Caller, context: ConsumerContext
) -> GroupDecision:
    """Let a classic member join, or take its next step. Raises ApiError."""
    step = _step(shard, request.group_id, context)
    protocols = tuple((item.name, bytes(item.metadata)) for item in request.protocols)
    subscription = _check_join(step, request, protocols)
    member_id = request.member_id
    if member_id == NO_MEMBER_ID:
        prefix = request.group_instance_id or caller.client_id
        member_id = f"{prefix}-{caller.new_member_id}"
        if (
            request.group_instance_id is None
            and caller.api_version >= _VERSION_THAT_ASKS_FOR_A_KNOWN_MEMBER_ID
        ):
            refusal = JoinGroupResponse(
                error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id
            )
            step.decision.replies.append((caller.ticket, refusal))
            return step.decision
    replaces_last_native = _replaces_last_native(step.group, request)
    before = _joining_member(step, request, member_id)
    after = replace(
        before,
        instance_id=request.group_instance_id or before.instance_id,
        rack_id=subscription.rack_id or before.rack_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        rebalance_timeout_ms=_rebalance_timeout_ms(request),
        topic_names=subscription.topics,
        topic_regex="",
        server_assignor=None,
        classic=ClassicFace(session_timeout_ms=request.session_timeout_ms, protocols=protocols),
    )
    owned = subscription.owned_structs(context.topics)
    member = update_member(step, MemberUpdate(before=before, after=after, owned=owned))
    if replaces_last_native:
        step.apply_all()
    if replaces_last_native and may_downgrade(step.group, (), context.config):
        downgrade(step, (), (member_id, caller.ticket))
        return step.decision
    step.cancel_timers(member_id, TimerKind.JOIN)
    step.extend_session(member)
    step.set_timer(TimerKind.SYNC, member_id, member.rebalance_timeout_ms)
    answer = JoinGroupResponse(
        member_id=member_id,
        generation_id=member.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=protocols[0][0],
    )
    step.decision.replies.append((caller.ticket, answer))
    return step.decision


def _step(shard: GroupShard, group_id: str, context: ConsumerContext) -> ConsumerStep:
    return ConsumerStep(shard=shard, group=shard.consumer_groups[group_id], context=context)


def _rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    if request.rebalance_timeout_ms < 0:
        return request.session_timeout_ms
    return request.rebalance_timeout_ms


def _check_join(
    step: ConsumerStep, request: JoinGroupRequest, protocols: Sequence[tuple[str, bytes]]
) -> EmbeddedSubscription:
    group, settings = step.group, step.context.config.consumer
    is_known = request.member_id in group.members or (
        request.group_instance_id is not None and request.group_instance_id in group.static_members
    )
    if len(group.members) >= settings.size_max and not is_known:
        raise ApiError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {settings.size_max} members.",
        )
    offered = {name for name, _ in protocols}
    common = common_classic_protocols(group.members.values())
    subscription = read_subscription(protocols[0][1]) if protocols else None
    if (
        request.protocol_type != CONSUMER_PROTOCOL_TYPE
        or subscription is None
        or (common is not None and not common & offered)
    ):
        raise ApiError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"Member {request.member_id}'s protocols are not supported.",
        )
    return subscription


def _replaces_last_native(group: ConsumerGroup, request: JoinGroupRequest) -> bool:
    existing_id = group.static_members.get(request.group_instance_id or "")
    existing = group.members.get(existing_id or NO_MEMBER_ID)
    return existing is not None and existing.classic is None and group.native_count == 1


def _joining_member(
    step: ConsumerStep, request: JoinGroupRequest, member_id: str
) -> ConsumerMember:
    group, instance_id = step.group, request.group_instance_id
    if instance_id is not None:
        existing_id = group.static_members.get(instance_id)
        if existing_id is not None and existing_id != member_id:
            if request.member_id != NO_MEMBER_ID:
                group.check_static_member(instance_id, member_id)
            existing = group.members[existing_id]
            return replace_static_member(step, existing, member_id)
    # The id of a member that got it a moment ago is not known yet; it looks like any unknown id.
    return group.members.get(member_id) or ConsumerMember(member_id=member_id)


def sync_consumer_group(
    shard: GroupShard, request: SyncGroupRequest, caller: Caller, context: ConsumerContext
) -> GroupDecision:
    """Return a member's assignment. Raises ApiError."""
    step = _step(shard, request.group_id, context)
    member = _classic_member(step.group, request.member_id, request.group_instance_id)
    face = _check_generation(member, request.generation_id)
    chosen = face.protocols[0][0]
    if (request.protocol_type or CONSUMER_PROTOCOL_TYPE) != CONSUMER_PROTOCOL_TYPE or (
        request.protocol_name or chosen
    ) != chosen:
        raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the member's protocol is {chosen}")
    if (
        _must_join_again(step.group, member)
        and member.state is not MemberState.UNREVOKED_PARTITIONS
    ):
        raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS, "the group is rebalancing: join again")
    step.cancel_timers(member.member_id, TimerKind.SYNC)
    step.extend_session(member)
    answer = SyncGroupResponse(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=chosen,
        assignment=encode_assignment(member.assigned, context.topics, like=face.protocols[0][1]),
    )
    step.decision.replies.append((caller.ticket, answer))
    return step.decision


def heartbeat_consumer_group(
    shard: GroupShard, request: HeartbeatRequest, caller: Caller, context: ConsumerContext
) -> GroupDecision:
    """Extend a member's session; tell it to join again when it can continue. Raises ApiError."""
    step = _step(shard, request.group_id, context)
    member = _classic_member(step.group, request.member_id, request.group_instance_id)
    _check_generation(member, request.generation_id)
    step.extend_session(member)
    error = ErrorCode.NONE
    if (
        _must_join_again(step.group, member)
        or member.state is MemberState.UNREVOKED_PARTITIONS
        or (member.state is MemberState.UNRELEASED_PARTITIONS and not _waits(step.group, member))
    ):
        error = ErrorCode.REBALANCE_IN_PROGRESS
        delay_ms = member.rebalance_timeout_ms
        step.set_timer(TimerKind.JOIN, member.member_id, delay_ms, unless_set=True)
    step.decision.replies.append((caller.ticket, HeartbeatResponse(error_code=error)))
    return step.decision


def leave_consumer_group(
    shard: GroupShard, request: LeaveGroupRequest, caller: Caller, context: ConsumerContext
) -> GroupDecision:
    """Remove members; an administrator may remove members of either protocol."""
    step = _step(shard, request.group_id, context)
    is_batch = caller.api_version >= _VERSION_THAT_LEAVES_IN_BATCHES
    asked = request.members if is_batch else [MemberIdentity(member_id=request.member_id)]
    leaving: dict[str, ConsumerMember] = {}
    results: list[MemberResponse] = []
    for identity in asked:
        error = ErrorCode.NONE
        try:
            member = _leaving_member(step.group, identity)
            if member.member_id in leaving:
                error = ErrorCode.UNKNOWN_MEMBER_ID
            leaving[member.member_id] = member
        except ApiError as refusal:
            error = refusal.code
        results.append(
            MemberResponse(
                member_id=identity.member_id,
                group_instance_id=identity.group_instance_id,
                error_code=error,
            )
        )
    if leaving:
        remove_members(step, list(leaving.values()))
    response = (
        LeaveGroupResponse(members=results)
        if is_batch
        else LeaveGroupResponse(error_code=results[0].error_code)
    )
    step.decision.replies.append((caller.ticket, response))
    return step.decision


def _leaving_member(group: ConsumerGroup, identity: MemberIdentity) -> ConsumerMember:
    if identity.group_instance_id is None:
        return group.check_member(identity.member_id)
    if identity.member_id == NO_MEMBER_ID:
        current = group.static_members.get(identity.group_instance_id, NO_MEMBER_ID)
        return group.check_static_member(identity.group_instance_id, current)
    return group.check_static_member(identity.group_instance_id, identity.member_id)


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> ConsumerMember:
    if instance_id is None:
        return group.check_member(member_id)
    return group.check_static_member(instance_id, member_id)


def _check_generation(member: ConsumerMember, generation: int) -> ClassicFace:
    if member.classic is None:
        raise ApiError(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"Member {member.member_id} does not use the classic protocol.",
        )
    if member.epoch != generation:
        raise ApiError(
            ErrorCode.ILLEGAL_GENERATION,
            f"The request generation id {generation} is not equal to the member epoch "
            f"{member.epoch} of member {member.member_id}.",
        )
    return member.classic


def _must_join_again(group: ConsumerGroup, member: ConsumerMember) -> bool:
    return group.epoch > member.epoch


def _waits(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether another member still owns partitions that this member waits for."""
    return any(
        group.owner_of(topic_id, item) not in {"", member.member_id}
        for topic_id, items in group.target_of(member.member_id).items()
        for item in items - member.assigned.get(topic_id, frozenset())
    )
