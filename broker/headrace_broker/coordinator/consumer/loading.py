"""What a new coordinator starts for its modern groups: timers, and nothing else."""

from collections.abc import Callable

from headrace_broker.coordinator.config import GroupConfig
from headrace_broker.coordinator.consumer.states import MemberState
from headrace_broker.coordinator.consumer.step import session_timeout_ms
from headrace_broker.coordinator.decision import GroupDecision, SetTimer, TimerKey, TimerKind
from headrace_broker.coordinator.shard import GroupShard, session_key
from headrace_broker.coordinator.share.admin import sessions_of


def finish_loading_modern_groups(
    shard: GroupShard, config_of: Callable[[str], GroupConfig]
) -> GroupDecision:
    """Start every member's session, and the revocation timer of members that are revoking."""
    decision = GroupDecision()
    for group_id, group in shard.consumer_groups.items():
        config = config_of(group_id)
        for member_id, member in group.members.items():
            decision.timers.append(
                SetTimer(
                    key=session_key(group_id, member_id),
                    delay_ms=session_timeout_ms(member, config),
                )
            )
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                key = TimerKey(kind=TimerKind.REVOCATION, group_id=group_id, member_id=member_id)
                decision.timers.append(SetTimer(key=key, delay_ms=member.rebalance_timeout_ms))
    for group_id, share_group in shard.share_groups.items():
        timeout_ms = config_of(group_id).share.session_timeout_ms
        decision.timers.extend(sessions_of(share_group, timeout_ms))
    return decision
