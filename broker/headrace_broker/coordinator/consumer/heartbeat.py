"""ConsumerGroupHeartbeat: join, keep and leave a consumer group (KIP-848).

One request replaces four of the classic protocol. It either raises ApiError with nothing decided,
or returns records that replay as one unit.
"""

from dataclasses import replace

from headrace_broker.coordinator.consumer.group import ConsumerGroup
from headrace_broker.coordinator.consumer.leaving import decide_leave
from headrace_broker.coordinator.consumer.member import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
)
from headrace_broker.coordinator.consumer.migration import upgrade
from headrace_broker.coordinator.consumer.records import (
    member_tombstones,
    target_record,
)
from headrace_broker.coordinator.consumer.states import MemberState
from headrace_broker.coordinator.consumer.step import (
    ConsumerContext,
    ConsumerStep,
    MemberUpdate,
    update_member,
)
from headrace_broker.coordinator.decision import Caller, GroupDecision, TimerKind
from headrace_broker.coordinator.modern.assignment import (
    NO_PARTITIONS,
    is_subset,
    to_structs,
)
from headrace_broker.coordinator.modern.regex import check_regex
from headrace_broker.coordinator.shard import GroupShard
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)


def decide_consumer_heartbeat(
    shard: GroupShard,
    request: ConsumerGroupHeartbeatRequest,
    caller: Caller,
    context: ConsumerContext,
) -> GroupDecision:
    """Decide on one heartbeat. Raises ApiError."""
    _check_request(request, caller, context)
    if request.member_epoch < JOIN_EPOCH:
        return decide_leave(shard, request, caller, context)
    is_join = request.member_epoch == JOIN_EPOCH
    step = ConsumerStep(
        shard=shard,
        group=ConsumerGroup(group_id=request.group_id),
        context=context,
    )
    _find_group(step, caller, is_join=is_join)
    _check_room(step, request)
    member_id = request.member_id or caller.new_member_id
    before = _find_member(step, request, member_id, is_join=is_join)
    update = MemberUpdate(
        before=before,
        after=_updated(before, request, caller),
        owned=request.topic_partitions,
    )
    _check_patterns(step.group, update.after, context)
    member = update_member(step, update)
    step.extend_session(member)
    step.decision.replies.append((caller.ticket, _response(request, before, member, context)))
    return step.decision


def _check_request(
    request: ConsumerGroupHeartbeatRequest, caller: Caller, context: ConsumerContext
) -> None:
    def demand(condition: object, message: str) -> None:
        if not condition:
            raise ApiError(ErrorCode.INVALID_REQUEST, message)

    is_join = request.member_epoch == JOIN_EPOCH
    makes_id = is_join and caller.api_version == 0
    demand(makes_id or request.member_id.strip(), "MemberId can't be empty.")
    demand(request.group_id.strip(), "GroupId can't be empty.")
    demand(request.instance_id is None or request.instance_id.strip(), "InstanceId can't be empty.")
    demand(request.rack_id is None or request.rack_id.strip(), "RackId can't be empty.")
    demand(request.member_epoch >= STATIC_LEAVE_EPOCH, "MemberEpoch is invalid.")
    demand(
        request.member_epoch != STATIC_LEAVE_EPOCH or request.instance_id is not None,
        "InstanceId can't be null.",
    )
    if is_join:
        demand(
            request.rebalance_timeout_ms > 0,
            "RebalanceTimeoutMs must be provided in first request.",
        )
        demand(
            request.topic_partitions is not None and not request.topic_partitions,
            "TopicPartitions must be empty when (re-)joining.",
        )
        demand(
            request.subscribed_topic_names is not None
            or request.subscribed_topic_regex is not None,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining.",
        )
    settings = context.config.consumer
    demand(
        len(request.subscribed_topic_names or ()) <= settings.topic_names_max,
        f"A member subscribes to at most {settings.topic_names_max} topics.",
    )
    if request.server_assignor is not None and request.server_assignor not in settings.assignors:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(settings.assignors)}.",
        )


def _find_group(step: ConsumerStep, caller: Caller, *, is_join: bool) -> None:
    """Set the step's group: the existing one, a new one, or a classic one that is converted."""
    shard, group_id = step.shard, step.group.group_id
    group = shard.consumer_groups.get(group_id)
    if group is not None:
        step.group = group
        return
    shard.check_no_share_group(group_id)
    classic = shard.groups.get(group_id)
    if not is_join:
        what = "not found" if classic is None else "is not a consumer group"
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} {what}.")
    step.is_draft = True  # no other request sees it yet
    if classic is not None:
        upgrade(step, classic)
    elif not caller.room_for_a_group:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "headrace.max.groups is reached")


def _check_room(step: ConsumerStep, request: ConsumerGroupHeartbeatRequest) -> None:
    size_max, group = step.context.config.consumer.size_max, step.group
    replaces = request.instance_id is not None and request.instance_id in group.static_members
    if len(group.members) >= size_max and request.member_id not in group.members and not replaces:
        raise ApiError(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {size_max} members.",
        )


def _find_member(
    step: ConsumerStep, request: ConsumerGroupHeartbeatRequest, member_id: str, *, is_join: bool
) -> ConsumerMember:
    """Return the requesting member, blank for one that joins. Raises if it is fenced."""
    group = step.group
    if request.instance_id is None:
        member = group.members.get(member_id)
        if member is None and is_join:
            return ConsumerMember(member_id=member_id)
        member = group.check_member(member_id)
    elif is_join:
        existing_id = group.static_members.get(request.instance_id)
        if existing_id is None:
            return group.members.get(member_id) or ConsumerMember(member_id=member_id)
        if existing_id != member_id:
            return take_over(step, group.members[existing_id], member_id)
        member = group.members[existing_id]
    else:
        member = group.check_static_member(request.instance_id, member_id)
    _check_epoch(member, request)
    return member


def _check_epoch(member: ConsumerMember, request: ConsumerGroupHeartbeatRequest) -> None:
    """Fence a member with another epoch, unless the answer with its new epoch was lost."""
    epoch = request.member_epoch
    if epoch in {JOIN_EPOCH, member.epoch}:
        return
    # A static member that went away has an epoch below its former one: that one is over.
    is_behind = epoch < member.epoch
    is_former = is_behind and epoch == member.previous_epoch
    if is_former and is_subset(request.topic_partitions, member.assigned):
        return
    which = "smaller" if is_behind else "greater"
    raise ApiError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {which} member epoch ({epoch}) than the one known by "
        f"the group coordinator ({member.epoch}). The member must abandon all its partitions and "
        "rejoin.",
    )


def take_over(step: ConsumerStep, existing: ConsumerMember, member_id: str) -> ConsumerMember:
    """Give a static member's place and its partitions to its new incarnation (KIP-345).

    The former incarnation must have left temporarily, or speak the classic protocol, which has no
    such leave.
    """
    if not existing.is_away and existing.classic is None:
        raise ApiError(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {existing.instance_id} cannot join the "
            f"group because the instance id is owned by {existing.member_id} member.",
        )
    return replace_static_member(step, existing, member_id)


def replace_static_member(
    step: ConsumerStep, existing: ConsumerMember, member_id: str
) -> ConsumerMember:
    """Record a member under a new id; it starts at epoch 0 with its predecessor's partitions."""
    group_id = step.group.group_id
    target = step.group.target_of(existing.member_id)
    successor = replace(
        existing,
        member_id=member_id,
        epoch=JOIN_EPOCH,
        previous_epoch=-1,
        state=MemberState.STABLE,
        revoking=NO_PARTITIONS,
    )
    step.cancel_timers(
        existing.member_id,
        TimerKind.SESSION,
        TimerKind.REVOCATION,
        TimerKind.JOIN,
        TimerKind.SYNC,
    )
    step.emit_and_apply(
        [
            *member_tombstones(group_id, existing.member_id),
            successor.metadata_record(group_id),
            target_record(group_id, member_id, target),
            successor.assignment_record(group_id),
        ]
    )
    return successor


def _updated(
    member: ConsumerMember, request: ConsumerGroupHeartbeatRequest, caller: Caller
) -> ConsumerMember:
    """Return the member with the request's fields; null fields stay unchanged."""
    names, pattern = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout_ms = request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms < 0 else timeout_ms,
        server_assignor=request.server_assignor or member.server_assignor,
        topic_names=member.topic_names if names is None else tuple(sorted(set(names))),
        topic_regex=member.topic_regex if pattern is None else pattern,
        client_id=caller.client_id,
        client_host=caller.client_host,
        classic=None,
    )


def _check_patterns(group: ConsumerGroup, member: ConsumerMember, context: ConsumerContext) -> None:
    pattern = member.topic_regex
    if not pattern or pattern in group.regexes:
        return
    check_regex(pattern)
    regexes_max = context.config.consumer.regexes_max
    if len(group.patterns() | {pattern}) > regexes_max:
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"A group subscribes to at most {regexes_max} different regular expressions.",
        )


def _response(
    request: ConsumerGroupHeartbeatRequest,
    before: ConsumerMember,
    member: ConsumerMember,
    context: ConsumerContext,
) -> ConsumerGroupHeartbeatResponse:
    """Return the assignment if it changed, or if the member sent all of its fields."""
    is_full = (
        request.rebalance_timeout_ms != -1
        and (
            request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
        )
        and request.topic_partitions is not None
    )
    assignment = None
    if request.member_epoch == JOIN_EPOCH or is_full or member.assigned != before.assigned:
        structs = to_structs(ConsumerGroupHeartbeatResponseTopicPartitions, member.assigned)
        assignment = Assignment(topic_partitions=structs)
    return ConsumerGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=member.epoch,
        heartbeat_interval_ms=context.config.consumer.heartbeat_interval_ms,
        assignment=assignment,
    )
