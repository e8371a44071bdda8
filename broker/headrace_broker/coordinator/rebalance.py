"""The rebalance of a classic group: join phase, generation, sync phase, and removal of members.

The functions here change one group, and add to the step's decision what must be recorded, answered
and timed. They follow Kafka's `GroupMetadataManager` and KIP-62, 134, 345 and 394.
"""

from dataclasses import dataclass, field

from headrace_broker.coordinator.config import GroupConfig
from headrace_broker.coordinator.decision import (
    CancelTimer,
    GroupDecision,
    RebalanceBegun,
    SetTimer,
    TimerKey,
    TimerKind,
)
from headrace_broker.coordinator.group import Group, Member
from headrace_broker.coordinator.shard import GroupShard, group_record, session_key
from headrace_broker.coordinator.states import GroupState
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from headrace_broker.protocol.messages.sync_group import SyncGroupResponse
from headrace_broker.protocol.types import Generation, TimestampMs

# Clients report a part of it; Java's client also cuts it at this length.
_REASON_CHARS_MAX = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStep:
    """One decision in progress: its group, and the time."""

    shard: GroupShard
    group: Group
    config: GroupConfig
    now_ms: TimestampMs
    decision: GroupDecision = field(default_factory=GroupDecision)

    def set_timer(self, kind: TimerKind, delay_ms: int) -> None:
        """Set a timer of the whole group."""
        key = TimerKey(kind=kind, group_id=self.group.group_id)
        self.decision.timers.append(SetTimer(key=key, delay_ms=delay_ms))

    def cancel_timer(self, kind: TimerKind) -> None:
        """Cancel a timer of the whole group."""
        key = TimerKey(kind=kind, group_id=self.group.group_id)
        self.decision.timers.append(CancelTimer(key=key))

    def extend_session(self, member_id: str, delay_ms: int) -> None:
        """Restart the session of a member, or of one that only knows its id."""
        key = session_key(self.group.group_id, member_id)
        self.decision.timers.append(SetTimer(key=key, delay_ms=delay_ms))

    def end_session(self, member_id: str) -> None:
        """Cancel a member's session timer."""
        self.decision.timers.append(CancelTimer(key=session_key(self.group.group_id, member_id)))


def answer_join(step: GroupStep, member: Member, response: JoinGroupResponse) -> None:
    """Answer the member's delayed JoinGroup, if it has one."""
    if member.join_ticket is not None:
        step.decision.replies.append((member.join_ticket, response))
        member.join_ticket = None


def answer_sync(step: GroupStep, member: Member, response: SyncGroupResponse) -> None:
    """Answer the member's delayed SyncGroup, if it has one."""
    if member.sync_ticket is not None:
        step.decision.replies.append((member.sync_ticket, response))
        member.sync_ticket = None


def answer_parked(step: GroupStep, member: Member, error: ErrorCode) -> None:
    """Answer the member's delayed request, if it has one, with an error."""
    answer_join(step, member, JoinGroupResponse(error_code=error, member_id=member.member_id))
    answer_sync(step, member, SyncGroupResponse(error_code=error))


def rebalance_or_complete_join(step: GroupStep, reason: str) -> None:
    """Start a rebalance, or check whether all members have now joined the running one."""
    if step.group.state is GroupState.PREPARING_REBALANCE:
        maybe_complete_join(step)
    else:
        prepare_rebalance(step, reason)


def prepare_rebalance(step: GroupStep, reason: str) -> None:
    """Begin the join phase. A group that was empty waits for more members first (KIP-134)."""
    group = step.group
    step.decision.rebalances.append(
        RebalanceBegun(
            group_id=group.group_id,
            generation=group.generation,
            members=len(group.members),
            reason=reason[:_REASON_CHARS_MAX],
        )
    )
    if group.state is GroupState.COMPLETING_REBALANCE:
        for member in group.members.values():
            member.assignment = b""
            if member.sync_ticket is not None:
                step.extend_session(member.member_id, member.session_timeout_ms)
            answer_sync(step, member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    step.cancel_timer(TimerKind.SYNC)
    group.awaiting_sync.clear()
    was_empty = group.state is GroupState.EMPTY
    group.transition(GroupState.PREPARING_REBALANCE, step.now_ms)
    if was_empty:
        delay_ms = step.config.initial_rebalance_delay_ms
        group.has_new_member = False
        group.initial_delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        if delay_ms == 0:
            maybe_complete_initial_join(step)
        else:
            step.set_timer(TimerKind.JOIN, delay_ms)
    elif group.has_everyone_joined:
        complete_join(step)
    else:
        step.set_timer(TimerKind.JOIN, group.rebalance_timeout_ms)


def maybe_complete_join(step: GroupStep) -> None:
    """End the join phase if all have joined, except in a new group's initial delay."""
    group = step.group
    if (
        group.state is GroupState.PREPARING_REBALANCE
        and group.initial_delay_left_ms is None
        and group.has_everyone_joined
    ):
        complete_join(step)


def maybe_complete_initial_join(step: GroupStep) -> None:
    """Extend a new group's delay while members keep coming, within the rebalance timeout."""
    group = step.group
    left_ms = group.initial_delay_left_ms or 0
    if group.has_new_member and left_ms > 0:
        delay_ms = min(step.config.initial_rebalance_delay_ms, left_ms)
        group.has_new_member = False
        group.initial_delay_left_ms = left_ms - delay_ms
        step.set_timer(TimerKind.JOIN, delay_ms)
    else:
        complete_join(step)


def complete_join(step: GroupStep) -> None:
    """End the join phase: drop missing members, begin the next generation, answer the others."""
    group = step.group
    step.cancel_timer(TimerKind.JOIN)
    group.initial_delay_left_ms = None
    absent = [item for item in group.members.values() if item.join_ticket is None]
    for member in absent:
        if not member.is_static:
            group.remove(member.member_id)
            step.end_session(member.member_id)
    if group.members and not group.elect_joined_leader():
        # Only static members are left and none has rejoined: their sessions decide (KIP-345).
        step.set_timer(TimerKind.JOIN, group.rebalance_timeout_ms)
        return
    group.generation = Generation(group.generation + 1)
    group.awaiting_sync.clear()
    if not group.members:
        group.protocol_name = None
        group.transition(GroupState.EMPTY, step.now_ms)
        step.decision.records.append(group_record(group))
        return
    group.protocol_name = group.select_protocol()
    group.transition(GroupState.COMPLETING_REBALANCE, step.now_ms)
    for member in group.members.values():
        member.assignment = b""
        member.is_new = False
        group.awaiting_sync.add(member.member_id)
        answer_join(step, member, join_response(group, member))
        step.extend_session(member.member_id, member.session_timeout_ms)
    step.set_timer(TimerKind.SYNC, group.rebalance_timeout_ms)


def join_response(
    group: Group, member: Member, *, skip_assignment: bool = False
) -> JoinGroupResponse:
    """Return a member's view of the generation; only the leader sees the other members."""
    is_leader = member.member_id == group.leader_id
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name or "",
        leader=group.leader_id or "",
        skip_assignment=skip_assignment,
        member_id=member.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=item.member_id,
                group_instance_id=item.group_instance_id,
                metadata=item.metadata_for(group.protocol_name),
            )
            for item in (group.members.values() if is_leader else ())
        ],
    )


def sync_response(group: Group, member: Member) -> SyncGroupResponse:
    """Return the member's own assignment."""
    return SyncGroupResponse(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


def drop_member(step: GroupStep, member: Member, error: ErrorCode) -> None:
    """Remove a member and answer its delayed request; the caller rebalances afterwards."""
    answer_parked(step, member, error)
    step.group.remove(member.member_id)
    step.end_session(member.member_id)


def drop_pending_member(step: GroupStep, member_id: str) -> None:
    """Drop a member that got its id but has not joined; others may be waiting for it."""
    step.group.pending_members.discard(member_id)
    step.end_session(member_id)
    maybe_complete_join(step)
    step.shard.forget_if_unused(step.group)


def rebalance_after_removal(step: GroupStep, reason: str) -> None:
    """Rebalance the remaining members after others left or were dropped."""
    if step.group.state is not GroupState.EMPTY:
        rebalance_or_complete_join(step, reason)
