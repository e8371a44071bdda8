"""Handles a group's timers when they fire."""

from headrace_broker.coordinator.config import GroupConfig
from headrace_broker.coordinator.decision import GroupDecision, TimerKey, TimerKind
from headrace_broker.coordinator.rebalance import (
    GroupStep,
    complete_join,
    drop_member,
    drop_pending_member,
    maybe_complete_initial_join,
    prepare_rebalance,
    rebalance_after_removal,
)
from headrace_broker.coordinator.shard import GroupShard
from headrace_broker.coordinator.states import GroupState
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.types import TimestampMs

_NAMED_MAX = 3


def decide_timer(
    shard: GroupShard, config: GroupConfig, key: TimerKey, now_ms: TimestampMs
) -> GroupDecision:
    """Decide what a timer means for its group, which may be gone by now."""
    group = shard.groups.get(key.group_id)
    if group is None:
        return GroupDecision()
    step = GroupStep(shard=shard, group=group, config=config, now_ms=now_ms)
    match key.kind:
        case TimerKind.SESSION:
            _session_expired(step, key.member_id)
        case TimerKind.JOIN:
            _join_phase_expired(step)
        case TimerKind.SYNC:
            _sync_phase_expired(step)
        case TimerKind.REVOCATION:
            pass  # it was set for a group that is a classic one now
    return step.decision


def _session_expired(step: GroupStep, member_id: str) -> None:
    group = step.group
    if member_id in group.pending_members:
        drop_pending_member(step, member_id)
        return
    member = group.members.get(member_id)
    if member is None:
        return
    is_waiting = member.join_ticket is not None or member.sync_ticket is not None
    if is_waiting and not member.is_new:
        # It cannot heartbeat while it waits for a response; its session continues after that.
        return
    drop_member(step, member, ErrorCode.UNKNOWN_MEMBER_ID)
    rebalance_after_removal(step, f"the session of {member_id} ended")


def _join_phase_expired(step: GroupStep) -> None:
    if step.group.state is not GroupState.PREPARING_REBALANCE:
        return
    if step.group.initial_delay_left_ms is not None:
        maybe_complete_initial_join(step)
    else:
        complete_join(step)


def _sync_phase_expired(step: GroupStep) -> None:
    group = step.group
    if group.state not in {GroupState.COMPLETING_REBALANCE, GroupState.STABLE}:
        return
    silent = [member for key, member in group.members.items() if key in group.awaiting_sync]
    if not silent:
        return
    for member in silent:
        drop_member(step, member, ErrorCode.UNKNOWN_MEMBER_ID)
    names = ", ".join(member.member_id for member in silent[:_NAMED_MAX])
    prepare_rebalance(step, f"{len(silent)} never asked for what they own, such as {names}")
