"""JoinGroup: who is admitted, and whether that starts a rebalance (KIP-62, 345, 394, 814)."""

from typing import Final

from headrace_broker.coordinator.config import GroupConfig
from headrace_broker.coordinator.decision import Caller, GroupDecision
from headrace_broker.coordinator.group import NO_MEMBER_ID, Group, Member, Protocols
from headrace_broker.coordinator.rebalance import (
    GroupStep,
    answer_join,
    answer_parked,
    join_response,
    maybe_complete_join,
    prepare_rebalance,
    rebalance_or_complete_join,
)
from headrace_broker.coordinator.shard import GroupShard, group_record
from headrace_broker.coordinator.states import GroupState
from headrace_broker.coordinator.subscription import subscribed_topics
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from headrace_broker.protocol.types import TimestampMs

_VERSION_THAT_ASKS_FOR_A_KNOWN_MEMBER_ID: Final = 4
_VERSION_THAT_CAN_SKIP_ASSIGNMENT: Final = 9


def decide_join(
    shard: GroupShard,
    config: GroupConfig,
    request: JoinGroupRequest,
    caller: Caller,
    now_ms: TimestampMs,
) -> GroupDecision:
    """Let a member join: it waits until the join phase ends, or is answered at once.

    Raises ApiError for anything else, with nothing applied.
    """
    protocols = check_request(config, request)
    is_unknown = request.member_id == NO_MEMBER_ID
    if is_unknown:
        group = shard.find_or_create(request.group_id, has_room=caller.room_for_a_group)
    elif (known := shard.groups.get(request.group_id)) is not None:
        group = known
    else:
        raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {request.group_id} has no members")
    step = GroupStep(shard=shard, group=group, config=config, now_ms=now_ms)
    try:
        _check_room(step, request.member_id)
        _check_protocols(group, request, protocols)
        if is_unknown:
            _join_unknown(step, request, protocols, caller)
        elif request.member_id in group.pending_members:
            _add_member(step, request, protocols, caller)
        else:
            _join_known(step, request, protocols, caller)
    except ApiError:
        shard.forget_if_unused(group)
        raise
    return step.decision


def check_request(config: GroupConfig, request: JoinGroupRequest) -> Protocols:
    """Return the request's protocols; raise ApiError for what every group refuses."""
    if not request.group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID, "a group id is not empty")
    if (
        not config.session_timeout_ms_min
        <= request.session_timeout_ms
        <= config.session_timeout_ms_max
    ):
        raise ApiError(
            ErrorCode.INVALID_SESSION_TIMEOUT,
            f"{request.session_timeout_ms} ms is not between {config.session_timeout_ms_min} and "
            f"{config.session_timeout_ms_max}, group.min and group.max.session.timeout.ms",
        )
    if len(request.protocols) > config.member_protocols_max:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"more than {config.member_protocols_max} protocols"
        )
    if sum(len(item.metadata) for item in request.protocols) > config.member_metadata_bytes_max:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"more than {config.member_metadata_bytes_max} bytes of member metadata",
        )
    return tuple((item.name, bytes(item.metadata)) for item in request.protocols)


def _check_room(step: GroupStep, member_id: str) -> None:
    """Enforce group.max.size: count all members, or those that joined while a rebalance runs."""
    group, size_max = step.group, step.config.group_size_max
    member = group.members.get(member_id)
    match group.state:
        case GroupState.EMPTY:
            return
        case GroupState.PREPARING_REBALANCE:
            is_in = member is not None and member.join_ticket is not None
            has_room = is_in or group.joined_count < size_max
        case _:
            has_room = member is not None or len(group.members) < size_max
    if not has_room:
        raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group has {size_max} members")


def _check_protocols(group: Group, request: JoinGroupRequest, protocols: Protocols) -> None:
    if not group.supports(request.protocol_type, (name for name, _ in protocols)):
        raise ApiError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"the group's protocols are {sorted(group.common_protocols())}",
        )


def _join_unknown(
    step: GroupStep, request: JoinGroupRequest, protocols: Protocols, caller: Caller
) -> None:
    group = step.group
    prefix = request.group_instance_id or caller.client_id
    member_id = f"{prefix}-{caller.new_member_id}"
    if request.group_instance_id is not None:
        if request.group_instance_id in group.static_members:
            _replace_static_member(step, request, protocols, caller, member_id)
        else:
            _add_member(step, request, protocols, caller, member_id)
    elif caller.api_version >= _VERSION_THAT_ASKS_FOR_A_KNOWN_MEMBER_ID:
        # So that a client whose response is lost does not leave a member behind (KIP-394).
        if len(group.pending_members) >= step.config.pending_members_max:
            raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED, "too many members are about to join")
        group.pending_members.add(member_id)
        step.extend_session(member_id, request.session_timeout_ms)
        refusal = JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
        step.decision.replies.append((caller.ticket, refusal))
    else:
        _add_member(step, request, protocols, caller, member_id)


def _join_known(
    step: GroupStep, request: JoinGroupRequest, protocols: Protocols, caller: Caller
) -> None:
    group = step.group
    member = group.check_member(request.member_id, request.group_instance_id)
    is_same = member.protocols == protocols
    match group.state:
        case GroupState.COMPLETING_REBALANCE if is_same:
            is_answered_at_once = True  # it may not have received the first response
        case GroupState.STABLE if is_same:
            # A leader that joins again wants a rebalance, for example after partitions were added.
            is_answered_at_once = member.member_id != group.leader_id
        case _:
            is_answered_at_once = False
    if is_answered_at_once:
        step.decision.replies.append((caller.ticket, join_response(group, member)))
        return
    _update_member(step, member, request, protocols, caller)
    rebalance_or_complete_join(step, _reason("joined again", member, request))


def _add_member(
    step: GroupStep,
    request: JoinGroupRequest,
    protocols: Protocols,
    caller: Caller,
    member_id: str | None = None,
) -> None:
    group = step.group
    member = Member(
        member_id=member_id or request.member_id,
        group_instance_id=request.group_instance_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=_rebalance_timeout_ms(request),
        protocols=protocols,
        is_new=True,
        join_ticket=caller.ticket,
    )
    group.has_new_member = group.initial_delay_left_ms is not None
    group.add(member, request.protocol_type)
    # It cannot heartbeat before its response; this removes a client that disappeared meanwhile.
    step.extend_session(member.member_id, step.config.new_member_join_timeout_ms)
    rebalance_or_complete_join(step, _reason("joined", member, request))


def _reason(event: str, member: Member, request: JoinGroupRequest) -> str:
    """Return the event, with the client's own reason (KIP-800)."""
    return f"{member.member_id} {event}: {request.reason or 'no reason given'}"


def _rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    """Return the rebalance timeout; version 0 has none, so the session timeout serves (KIP-62)."""
    if request.rebalance_timeout_ms < 0:
        return request.session_timeout_ms
    return request.rebalance_timeout_ms


def _update_member(
    step: GroupStep,
    member: Member,
    request: JoinGroupRequest,
    protocols: Protocols,
    caller: Caller,
) -> None:
    # A client that asks again has given up on its earlier request.
    earlier = JoinGroupResponse(
        error_code=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id
    )
    answer_join(step, member, earlier)
    member.protocols = protocols
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = _rebalance_timeout_ms(request)
    member.join_ticket = caller.ticket


def _replace_static_member(
    step: GroupStep,
    request: JoinGroupRequest,
    protocols: Protocols,
    caller: Caller,
    member_id: str,
) -> None:
    """Put a restarted static member in its old place, without a rebalance if that is safe."""
    group = step.group
    instance_id = request.group_instance_id or ""
    leader_before = group.leader_id or ""
    old = group.members[group.static_members[instance_id]]
    old_topics = subscribed_topics(old.metadata_for(group.protocol_name))
    answer_parked(step, old, ErrorCode.FENCED_INSTANCE_ID)
    step.end_session(old.member_id)
    member = group.replace_static_member(instance_id, member_id)
    member.client_id, member.client_host = caller.client_id, caller.client_host
    _update_member(step, member, request, protocols, caller)
    step.extend_session(member_id, member.session_timeout_ms)
    if group.state is GroupState.COMPLETING_REBALANCE:
        # The leader may already be assigning to the old member id: start over.
        prepare_rebalance(step, f"static member {instance_id} came back amid a rebalance")
    elif group.state is GroupState.PREPARING_REBALANCE:
        maybe_complete_join(step)
    elif (
        group.select_protocol() != group.protocol_name
        or group.record_bytes_max(_assignments(group)) > step.config.record_bytes_max
        or subscribed_topics(member.metadata_for(group.protocol_name)) != old_topics
    ):
        prepare_rebalance(step, f"static member {instance_id} came back changed")
    else:
        step.decision.records.append(group_record(group))
        answer_join(step, member, _kept_place(group, member, leader_before, caller.api_version))


def _assignments(group: Group) -> dict[str, bytes]:
    return {member.member_id: member.assignment for member in group.members.values()}


def _kept_place(
    group: Group, member: Member, leader_before: str, api_version: int
) -> JoinGroupResponse:
    """Tell a restarted static member of the present generation.

    A leader must not assign again. From version 9 on the response says so (KIP-814). An older
    client is told that its former incarnation leads, and so acts as a follower.
    """
    is_leader = member.member_id == group.leader_id
    if api_version >= _VERSION_THAT_CAN_SKIP_ASSIGNMENT:
        return join_response(group, member, skip_assignment=is_leader)
    response = join_response(group, member)
    response.leader = leader_before
    response.members = []
    return response
