"""The state of one partition of `__consumer_offsets`: its groups and their committed offsets.

Only `replay` changes state that survives a restart. It applies records that were just decided, and
records that are read while the partition loads. A rebalance in progress exists only in memory:
after a failover the members get an error and join again.
"""

from collections.abc import Container
from dataclasses import dataclass, field

from headrace_broker.coordinator.consumer.group import ConsumerGroup
from headrace_broker.coordinator.consumer.replay import replay_consumer
from headrace_broker.coordinator.decision import GroupDecision, SetTimer, TimerKey, TimerKind
from headrace_broker.coordinator.group import Group
from headrace_broker.coordinator.pending_offsets import AFTER_ALL, PendingOffsets
from headrace_broker.coordinator.records import (
    ConsumerGroupRecord,
    CoordinatorRecord,
    EpochRecord,
    GroupRecord,
    OffsetRecord,
)
from headrace_broker.coordinator.share.group import ShareGroup, replay_share
from headrace_broker.coordinator.share.records import ShareEpochRecord, ShareGroupRecord
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.records.coordinator import (
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from headrace_broker.protocol.types import PartitionIndex

TopicPartition = tuple[str, int]


@dataclass(slots=True, kw_only=True)
class GroupShard:
    """Groups and offsets of one partition; one driver owns it."""

    partition: PartitionIndex
    groups: dict[str, Group] = field(default_factory=dict)
    consumer_groups: dict[str, ConsumerGroup] = field(default_factory=dict)
    """Groups of the consumer protocol (KIP-848); an id is in at most one of the three."""
    share_groups: dict[str, ShareGroup] = field(default_factory=dict)
    """Share groups (KIP-932)."""
    offsets: dict[str, dict[TopicPartition, OffsetCommitValue]] = field(default_factory=dict)
    pending_offsets: dict[str, set[TopicPartition]] = field(default_factory=dict)
    """Offsets of open transactions: a fetch that requires stable offsets must wait for them."""
    transactional: PendingOffsets = field(default_factory=PendingOffsets)

    def find(self, group_id: str) -> Group:
        """Return the group; raise GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        return group

    def find_or_create(self, group_id: str, *, has_room: bool) -> Group:
        """Return the group; create it in memory if it is missing and the broker has room.

        The caller has made sure that the id is of no group of another kind.
        """
        group = self.groups.get(group_id)
        if group is None:
            if not has_room:
                raise ApiError(ErrorCode.POLICY_VIOLATION, "headrace.max.groups is reached")
            group = self.groups[group_id] = Group(group_id=group_id)
        return group

    @property
    def group_count(self) -> int:
        """How many groups there are, of all kinds."""
        return len(self.groups) + len(self.consumer_groups) + len(self.share_groups)

    def has_other_kind(self, group_id: str, kind: Container[str]) -> bool:
        """Whether the id belongs to a group of a kind other than those given."""
        return group_id not in kind and any(
            group_id in groups for groups in (self.groups, self.consumer_groups, self.share_groups)
        )

    def check_no_share_group(
        self, group_id: str, code: ErrorCode = ErrorCode.GROUP_ID_NOT_FOUND
    ) -> None:
        """Raise an error if the id is a share group's, which does not support the request."""
        if group_id in self.share_groups:
            raise ApiError(code, f"Group {group_id} is a share group.")

    def offsets_of(self, group_id: str) -> dict[TopicPartition, OffsetCommitValue]:
        """Return the group's committed offsets."""
        return self.offsets.get(group_id, {})

    def known_offsets_of(self, group_id: str) -> set[TopicPartition]:
        """Return where the group has an offset, or gets one when an open transaction commits.

        A deletion covers both: a tombstone overrides what is pending.
        """
        return {*self.offsets_of(group_id), *self.pending_offsets.get(group_id, ())}

    def ensure_group(self, group_id: str) -> None:
        """Have a group for offsets that are read from the log: who commits need not be a member."""
        if group_id not in self.consumer_groups and group_id not in self.groups:
            self.groups[group_id] = Group(group_id=group_id)

    def forget_if_unused(self, group: Group) -> None:
        """Drop a group without members, offsets and records."""
        if (
            group.is_unused
            and group.persisted is None
            and group.group_id not in self.offsets
            and group.group_id not in self.pending_offsets
        ):
            self.groups.pop(group.group_id, None)


def replay(shard: GroupShard, record: CoordinatorRecord, order: int = AFTER_ALL) -> None:
    """Apply one record; `order` is the place of an offset that was pending until now."""
    match record:
        case GroupRecord(key=key, value=value):
            _replay_group(shard, key.group, record)
        case OffsetRecord(key=key, value=value):
            shard.transactional.overwrite(key.group, (key.topic, key.partition), order)
            _replay_offset(shard, key, value)
        case _ if isinstance(record, ConsumerGroupRecord):
            _replay_consumer_group(shard, record)
        case _:
            _replay_share_group(shard, record)


def _replay_group(shard: GroupShard, group_id: str, record: GroupRecord) -> None:
    if record.value is None:
        group = shard.groups.pop(group_id, None)
        if group is not None and group_id in shard.offsets:
            # Offsets have their own tombstones; until then they keep the group in existence.
            shard.groups[group_id] = Group(group_id=group_id)
        return
    shard.consumer_groups.pop(group_id, None)
    shard.groups.setdefault(group_id, Group(group_id=group_id)).persisted = record.value


def _replay_consumer_group(shard: GroupShard, record: ConsumerGroupRecord) -> None:
    group_id = record.key.group_id
    if isinstance(record, EpochRecord) and record.value is None:
        ended = shard.consumer_groups.pop(group_id, None)
        if ended is not None and group_id in shard.offsets:
            # Offsets have their own tombstones; until then they keep the group in existence.
            shard.groups.setdefault(group_id, Group(group_id=group_id))
        return
    group = shard.consumer_groups.get(group_id)
    if group is None:
        if record.value is None:
            return
        shard.groups.pop(group_id, None)
        group = shard.consumer_groups[group_id] = ConsumerGroup(group_id=group_id)
    replay_consumer(group, record)


def _replay_share_group(shard: GroupShard, record: ShareGroupRecord) -> None:
    group_id = record.key.group_id
    if isinstance(record, ShareEpochRecord) and record.value is None:
        shard.share_groups.pop(group_id, None)
        return
    group = shard.share_groups.get(group_id)
    if group is None:
        if record.value is None:
            return
        group = shard.share_groups[group_id] = ShareGroup(group_id=group_id)
    replay_share(group, record)


def _replay_offset(
    shard: GroupShard, key: OffsetCommitKey, value: OffsetCommitValue | None
) -> None:
    where = (key.topic, key.partition)
    if value is not None:
        shard.ensure_group(key.group)
        shard.offsets.setdefault(key.group, {})[where] = value
        return
    offsets = shard.offsets.get(key.group)
    if offsets is not None:
        offsets.pop(where, None)
        if not offsets:
            del shard.offsets[key.group]
            if key.group in shard.groups:
                shard.forget_if_unused(shard.groups[key.group])


def finish_loading(shard: GroupShard) -> GroupDecision:
    """Rebuild the groups from the replayed records, and start every member's session."""
    decision = GroupDecision()
    for group_id, group in shard.groups.items():
        if group.persisted is None:
            continue
        rebuilt = shard.groups[group_id] = Group.from_value(group_id, group.persisted)
        decision.timers.extend(
            SetTimer(
                key=session_key(group_id, member.member_id), delay_ms=member.session_timeout_ms
            )
            for member in rebuilt.members.values()
        )
    return decision


def session_key(group_id: str, member_id: str) -> TimerKey:
    """Return the key of a member's session timer."""
    return TimerKey(kind=TimerKind.SESSION, group_id=group_id, member_id=member_id)


def group_record(group: Group) -> GroupRecord:
    """Return the record of the group's present state."""
    return GroupRecord(key=GroupMetadataKey(group=group.group_id), value=group.to_value())


def group_tombstone(group_id: str) -> GroupRecord:
    """Return the tombstone of the group."""
    return GroupRecord(key=GroupMetadataKey(group=group_id), value=None)


def offset_tombstone(group_id: str, where: TopicPartition) -> OffsetRecord:
    """Return the tombstone of one committed offset."""
    topic, partition = where
    return OffsetRecord(
        key=OffsetCommitKey(group=group_id, topic=topic, partition=partition), value=None
    )
