"""Builds the records of a consumer group, and its tombstones."""

from collections.abc import Iterable, Iterator

from headrace_broker.coordinator.consumer.group import ConsumerGroup
from headrace_broker.coordinator.modern.assignment import Partitions, to_structs
from headrace_broker.coordinator.modern.regex import ResolvedRegex
from headrace_broker.coordinator.records import (
    ConsumerGroupRecord,
    CurrentAssignmentRecord,
    EpochRecord,
    MemberRecord,
    RegexRecord,
    TargetEpochRecord,
    TargetRecord,
)
from headrace_broker.protocol.messages.records.consumer_group_target_assignment_member import (
    TopicPartition,
)
from headrace_broker.protocol.messages.records.coordinator import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> EpochRecord:
    """Return record 3."""
    return EpochRecord(
        key=ConsumerGroupMetadataKey(group_id=group_id),
        value=ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
    )


def target_epoch_record(group_id: str, epoch: int) -> TargetEpochRecord:
    """Return record 6."""
    return TargetEpochRecord(
        key=ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
        value=ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch),
    )


def target_record(group_id: str, member_id: str, target: Partitions) -> TargetRecord:
    """Return record 7."""
    return TargetRecord(
        key=ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        value=ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=to_structs(TopicPartition, target)
        ),
    )


def regex_record(group_id: str, pattern: str, resolved: ResolvedRegex | None) -> RegexRecord:
    """Return record 16, or its tombstone."""
    return RegexRecord(
        key=ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern),
        value=None
        if resolved is None
        else ConsumerGroupRegularExpressionValue(
            topics=sorted(resolved.topics),
            version=resolved.version,
            timestamp=resolved.timestamp_ms,
        ),
    )


def member_tombstones(group_id: str, member_id: str) -> list[ConsumerGroupRecord]:
    """Return the tombstones of a member: its partitions, its target, itself."""
    return [
        CurrentAssignmentRecord(
            key=ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id),
            value=None,
        ),
        TargetRecord(
            key=ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
            value=None,
        ),
        MemberRecord(
            key=ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), value=None
        ),
    ]


def group_tombstones(group: ConsumerGroup) -> Iterator[ConsumerGroupRecord]:
    """Yield the tombstones of a group, in Kafka's order: the group itself last."""
    group_id = group.group_id
    tombstones = [member_tombstones(group_id, member_id) for member_id in group.members]
    yield from (current for current, _, _ in tombstones)
    yield from (target for _, target, _ in tombstones)
    yield TargetEpochRecord(
        key=ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value=None
    )
    yield from (member for _, _, member in tombstones)
    yield from (regex_record(group_id, pattern, None) for pattern in group.regexes)
    yield EpochRecord(key=ConsumerGroupMetadataKey(group_id=group_id), value=None)


def creation_records(group: ConsumerGroup) -> Iterable[ConsumerGroupRecord]:
    """Return the records that create a whole group: 5, 3, 7, 6, 8."""
    group_id = group.group_id
    yield from (member.metadata_record(group_id) for member in group.members.values())
    yield epoch_record(group_id, group.epoch, group.metadata_hash)
    yield from (
        target_record(group_id, member_id, group.target_of(member_id))
        for member_id in group.members
    )
    yield target_epoch_record(group_id, group.target_epoch)
    yield from (member.assignment_record(group_id) for member in group.members.values())
