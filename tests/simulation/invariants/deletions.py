"""Which committed offsets and groups may go, judged by the rules once more.

KIP-229 and KIP-496: not those that somebody uses. KIP-211: when their time is over, not before.
"""

from typing import Any

from headrace_broker.coordinator import admin, expiry, offsets
from headrace_broker.coordinator.records import NO_EXPIRY, OffsetRecord
from headrace_broker.coordinator.subscription import subscribed_topics
from simulation.history import History
from simulation.observing import observer
from simulation.workloads.forgetting import EXPIRED, IN_USE


def _members(shard: Any, group_id: str) -> dict[str, Any]:
    group = shard.groups.get(group_id) or shard.consumer_groups.get(group_id)
    return {} if group is None else group.members


def _subscribed(member: Any) -> frozenset[str]:
    """Return the topics that a member of either protocol names."""
    if hasattr(member, "protocols"):
        known = [subscribed_topics(metadata) for _, metadata in member.protocols]
        return frozenset().union(*(each or frozenset() for each in known))
    return frozenset(member.topic_names)


def _deleted(decision: Any) -> list[tuple[str, tuple[str, int]]]:
    return [
        (record.key.group, (record.key.topic, record.key.partition))
        for record in decision.records
        if isinstance(record, OffsetRecord) and record.value is None
    ]


@observer(admin, "decide_delete_group")
def _decide_delete_group(
    history: History, original: Any, shard: Any, group_id: str, caller: Any
) -> Any:
    """A group with members stays; with one goes what is pending, too."""
    members = sorted(_members(shard, group_id))
    is_there = shard.offsets_of(group_id).keys() | shard.pending_offsets.get(group_id, set())
    if members:
        history.reach(IN_USE)
    decision = original(shard, group_id, caller)
    if members:
        history.violate("deleted-in-use", f"{group_id} has {members}")
    left = is_there - {where for _, where in _deleted(decision)}
    if left and group_id not in shard.share_groups:
        history.violate("kept-without-its-group", f"{group_id} leaves {sorted(left)}")
    return decision


@observer(offsets, "decide_offset_delete")
def _decide_offset_delete(
    history: History, original: Any, shard: Any, request: Any, *rest: Any
) -> Any:
    """An offset of what a member subscribes to stays."""
    used = frozenset().union(
        *(_subscribed(member) for member in _members(shard, request.group_id).values())
    )
    decision = original(shard, request, *rest)
    for group_id, (topic, index) in _deleted(decision):
        if topic in used:
            history.violate("deleted-in-use", f"{topic}-{index} in {group_id}")
    return decision


@observer(expiry, "decide_expiry")
def _decide_expiry(history: History, original: Any, shard: Any, config: Any, now_ms: int) -> Any:
    """An offset goes when its time is over: its own, or that of a group without members."""
    pending = {group: set(places) for group, places in shard.pending_offsets.items()}
    decision = original(shard, config, now_ms)
    for group_id, where in _deleted(decision):
        value = shard.offsets_of(group_id)[where]
        ends_ms = value.expire_timestamp
        if ends_ms == NO_EXPIRY:
            ends_ms = value.commit_timestamp + config.offsets_retention_ms
        used = [
            each for each in _members(shard, group_id).values() if where[0] in _subscribed(each)
        ]
        if now_ms < ends_ms or used or where in pending.get(group_id, ()):
            history.violate("expired-too-early", f"{where} of {group_id} at {now_ms}: {value}")
        history.reach(EXPIRED)
    return decision
