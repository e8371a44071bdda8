"""Apply a record to a consumer group.

A compacted log lacks all superseded records: a member's assignment may come before the member, or a
tombstone for something never seen (KAFKA-17306, KAFKA-19862, KAFKA-20254). The result depends only
on the last record of each key.
"""

from headrace_broker.coordinator.consumer.group import ConsumerGroup
from headrace_broker.coordinator.consumer.member import ConsumerMember
from headrace_broker.coordinator.modern.assignment import from_structs
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


def replay_consumer(group: ConsumerGroup, record: ConsumerGroupRecord) -> None:
    """Apply one record; the shard applies the tombstone of the group itself."""
    match record:
        case EpochRecord(value=value) if value is not None:
            group.epoch = value.epoch
            group.metadata_hash = value.metadata_hash
        case MemberRecord(key=key, value=value):
            if value is None:
                group.remove_member(key.member_id)
            else:
                member = group.members.get(key.member_id)
                member = member or ConsumerMember(member_id=key.member_id)
                group.set_member(member.with_metadata(value))
        case TargetEpochRecord(value=value):
            group.target_epoch = 0 if value is None else value.assignment_epoch
        case TargetRecord(key=key, value=value):
            target = None if value is None else from_structs(value.topic_partitions)
            group.set_target(key.member_id, target)
        case CurrentAssignmentRecord(key=key, value=value):
            member = group.members.get(key.member_id)
            if member is None and value is None:
                return
            member = member or ConsumerMember(member_id=key.member_id)
            group.set_member(member.with_assignment(value))
        case RegexRecord(key=key, value=value):
            resolved = None
            if value is not None:
                resolved = ResolvedRegex(
                    topics=frozenset(value.topics),
                    version=value.version,
                    timestamp_ms=value.timestamp,
                )
            group.set_regex(key.regular_expression, resolved)
        case _:
            pass
