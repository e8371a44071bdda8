"""Deletes offsets whose retention is over (KIP-211), and offsets of deleted topics."""

from collections.abc import Collection, Iterator

from headrace_broker.coordinator.config import GroupConfig
from headrace_broker.coordinator.consumer.group import ConsumerGroup
from headrace_broker.coordinator.consumer.records import group_tombstones
from headrace_broker.coordinator.decision import GroupDecision
from headrace_broker.coordinator.group import Group
from headrace_broker.coordinator.records import NO_EXPIRY, CoordinatorRecord
from headrace_broker.coordinator.shard import (
    GroupShard,
    TopicPartition,
    group_tombstone,
    offset_tombstone,
)
from headrace_broker.coordinator.states import GroupState
from headrace_broker.protocol.messages.records.coordinator import OffsetCommitValue
from headrace_broker.protocol.types import TimestampMs


def decide_expiry(shard: GroupShard, config: GroupConfig, now_ms: TimestampMs) -> GroupDecision:
    """Delete expired offsets, and groups that have neither members nor offsets."""
    decision = GroupDecision()
    for group in list(shard.groups.values()):
        offsets = shard.offsets_of(group.group_id)
        # A transaction's offset that is still open replaces this one, or leaves it.
        pending = shard.pending_offsets.get(group.group_id, ())
        expired = [each for each in _expired(group, offsets, config, now_ms) if each not in pending]
        decision.records.extend(offset_tombstone(group.group_id, where) for where in expired)
        if group.is_unused and not pending and len(expired) == len(offsets):
            if group.persisted is not None:
                decision.records.append(group_tombstone(group.group_id))
            shard.forget_if_unused(group)
    for consumer_group in shard.consumer_groups.values():
        decision.records.extend(_expiry_of(consumer_group, shard, config, now_ms))
    return decision


def _expiry_of(
    group: ConsumerGroup, shard: GroupShard, config: GroupConfig, now_ms: TimestampMs
) -> Iterator[CoordinatorRecord]:
    """Yield tombstones like for a classic group; no record says since when it is empty."""
    if group.members:
        group.empty_since_ms = None
    elif group.empty_since_ms is None:
        group.empty_since_ms = now_ms
    offsets = shard.offsets_of(group.group_id)
    in_use = group.subscribed_topics()
    pending = shard.pending_offsets.get(group.group_id, ())
    expired = [
        where
        for where, value in offsets.items()
        if where[0] not in in_use
        and where not in pending
        and _is_expired(value, group.empty_since_ms or 0, config, now_ms)
    ]
    yield from (offset_tombstone(group.group_id, where) for where in expired)
    if not group.members and not pending and len(expired) == len(offsets):
        yield from group_tombstones(group)


def _expired(
    group: Group,
    offsets: dict[TopicPartition, OffsetCommitValue],
    config: GroupConfig,
    now_ms: TimestampMs,
) -> list[TopicPartition]:
    """Return the expired partitions: retention counts from when the group became empty.

    In a stable consumer group, only offsets of topics without a subscription expire.
    """
    in_use: frozenset[str] = frozenset()
    empty_since_ms = 0
    if group.protocol_type is not None:
        if group.state is GroupState.EMPTY:
            empty_since_ms = group.state_since_ms or 0
        elif group.state is GroupState.STABLE and (topics := group.subscribed_topics()) is not None:
            in_use = topics
        else:
            return []
    return [
        where
        for where, value in offsets.items()
        if where[0] not in in_use and _is_expired(value, empty_since_ms, config, now_ms)
    ]


def _is_expired(
    value: OffsetCommitValue, empty_since_ms: int, config: GroupConfig, now_ms: TimestampMs
) -> bool:
    if value.expire_timestamp != NO_EXPIRY:
        return now_ms >= value.expire_timestamp
    # An administrator's commit to a group that has long been empty restarts its retention.
    since_ms = max(value.commit_timestamp, empty_since_ms)
    return now_ms - since_ms >= config.offsets_retention_ms


def decide_topics_deleted(shard: GroupShard, topics: Collection[str]) -> GroupDecision:
    """Delete every group's offsets of deleted topics: a new topic must not inherit them.

    So that those of open transactions do not become readable either: a tombstone overrides them.
    """
    doomed = {
        (group_id, where)
        for group_id, offsets in shard.offsets.items()
        for where in offsets
        if where[0] in topics
    }
    doomed |= shard.transactional.of_topics(topics)
    return GroupDecision(
        records=[offset_tombstone(group_id, where) for group_id, where in sorted(doomed)]
    )
