"""Nobody is waited for without an end: each member, and each phase of a rebalance, has its timer.

So a member that died is missed, its partitions go to others, and whoever joined is answered.
"""

from typing import Any

from headrace_broker.coordinator import membership, rebalance, timers
from headrace_broker.coordinator import protocols as coordinator_protocols
from headrace_broker.coordinator.consumer import leaving
from headrace_broker.coordinator.consumer.states import MemberState
from headrace_broker.coordinator.decision import SetTimer, TimerKey, TimerKind
from headrace_broker.coordinator.shard import session_key
from headrace_broker.coordinator.states import GroupState
from headrace_broker.server.groups import group_driver
from headrace_broker.server.groups.group_driver_shard import ShardStatus
from simulation.cluster import Node
from simulation.history import History
from simulation.invariants.invariant import Invariant
from simulation.observing import observer

ABSENT = "a member has not joined again when the phase ends"
ABSENT_STATIC = "a static member has not joined again when the phase ends"
_PHASES = {
    GroupState.PREPARING_REBALANCE: TimerKind.JOIN,
    GroupState.COMPLETING_REBALANCE: TimerKind.SYNC,
}


class Waiting(Invariant):
    """Looks at the coordinators' groups between two decisions."""

    def check_node(self, node: Node) -> None:
        """Compare groups and timers of the partitions that it coordinates."""
        broker: Any = node.broker
        for driver in broker.groups._shards.values():
            if driver.status is ShardStatus.ACTIVE:
                self._check_classic(driver)
                self._check_modern(driver)

    def _check_classic(self, driver: Any) -> None:
        for name, group in driver.shard.groups.items():
            for member_id, member in group.members.items():
                is_waiting = member.join_ticket is not None or member.sync_ticket is not None
                if not is_waiting or member.is_new:
                    self._has(driver, session_key(name, member_id))
                is_asking = group.state is GroupState.COMPLETING_REBALANCE
                if member.sync_ticket is not None and not is_asking:
                    self.history.violate("waits-for-ever", f"{member_id} of {name} for its share")
            for member_id in group.pending_members:
                self._has(driver, session_key(name, member_id))
            phase = _PHASES.get(group.state, TimerKind.SYNC)
            if group.state in _PHASES or group.awaiting_sync:
                self._has(driver, TimerKey(kind=phase, group_id=name))
            self._check_record(name, group)

    def _check_record(self, name: str, group: Any) -> None:
        """In between two rebalances the members are those of the record, and all are answered."""
        if group.state in _PHASES or (group.state is GroupState.EMPTY and group.persisted is None):
            return
        assigned = {member.member_id for member in group.persisted.members}
        if assigned != group.members.keys():
            self.history.violate(
                "no-rebalance",
                f"{name} is {group.state.value} with {sorted(group.members)}, and its record has "
                f"{sorted(assigned)}",
            )

    def _check_modern(self, driver: Any) -> None:
        for name, group in driver.shard.consumer_groups.items():
            for member_id, member in group.members.items():
                self._has(driver, session_key(name, member_id))
                if member.state is MemberState.UNREVOKED_PARTITIONS:
                    kind = TimerKind.REVOCATION
                    self._has(driver, TimerKey(kind=kind, group_id=name, member_id=member_id))
        for name, share_group in driver.shard.share_groups.items():
            for member_id in share_group.members:
                self._has(driver, session_key(name, member_id))

    def _has(self, driver: Any, key: TimerKey) -> None:
        if key not in driver._timers:
            self.history.violate("waits-for-ever", f"no timer for {key}")


@observer(rebalance, "complete_join")
@observer(timers, "complete_join")
def _complete_join(history: History, original: Any, step: Any) -> None:
    """Who has not joined again when the phase ends is no member any more, but for static ones."""
    group = step.group
    absent = [member for member in group.members.values() if member.join_ticket is None]
    if any(not member.is_static for member in absent):
        history.reach(ABSENT)
    if any(member.is_static for member in absent):
        history.reach(ABSENT_STATIC)
    original(step)
    for member in absent:
        if (member.member_id in group.members) is not member.is_static:
            history.violate("absent-member", f"{member.member_id} in {group.group_id}")


@observer(membership, "_assign")
def _assign(history: History, original: Any, step: Any, assigned: Any) -> None:
    """The leader assigns, and leaves nobody out: all that it was told of are members still."""
    original(step, assigned)
    left_out = sorted(step.group.members.keys() - assigned.keys())
    if left_out:
        history.violate("member-left-out", f"{left_out} in {step.group.group_id}")


@observer(leaving, "decide_consumer_timer")
@observer(coordinator_protocols, "decide_consumer_timer")
def _decide_consumer_timer(
    history: History, original: Any, shard: Any, key: TimerKey, *rest: Any
) -> Any:
    """Who has given up what it was to give up is not fenced for it."""
    group = shard.consumer_groups.get(key.group_id)
    member = None if group is None else group.members.get(key.member_id)
    is_done = member is not None and member.state is not MemberState.UNREVOKED_PARTITIONS
    decision = original(shard, key, *rest)
    if key.kind is TimerKind.REVOCATION and is_done and decision.records:
        history.violate("fenced-without-need", f"{member} of {key.group_id}")
    return decision


@observer(membership, "decide_heartbeat")
def _decide_heartbeat(
    history: History, original: Any, shard: Any, config: Any, request: Any, *rest: Any
) -> Any:
    """Who beats has its whole session before it from now on."""
    decision = original(shard, config, request, *rest)
    group = shard.groups.get(request.group_id)
    if group is not None and request.member_id in group.members:
        timeout_ms = group.members[request.member_id].session_timeout_ms
        _judge_session(history, decision, request, timeout_ms)
    return decision


@observer(group_driver, "decide_consumer_heartbeat")
@observer(group_driver, "decide_share_heartbeat")
def _decide_modern_heartbeat(
    history: History, original: Any, shard: Any, request: Any, *rest: Any
) -> Any:
    """As above, in the groups of KIP-848 and KIP-932; who leaves says so by its epoch."""
    decision = original(shard, request, *rest)
    if request.member_epoch >= 0 and request.member_id:
        _judge_session(history, decision, request, None)
    return decision


def _judge_session(history: History, decision: Any, request: Any, timeout_ms: int | None) -> None:
    key = session_key(request.group_id, request.member_id)
    delays = [
        timer.delay_ms
        for timer in decision.timers
        if isinstance(timer, SetTimer) and timer.key == key
    ]
    if not delays or timeout_ms not in (None, delays[-1]):
        history.violate("session-not-extended", f"{key}: {delays}, not {timeout_ms} ms")
