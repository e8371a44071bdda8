"""The records of share groups in `__consumer_offsets`: types 10 to 15, in Kafka's own format."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID

from headrace_broker.coordinator.modern.assignment import Partitions, to_structs
from headrace_broker.protocol.messages.records.share_group_current_member_assignment import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
)
from headrace_broker.protocol.messages.records.share_group_member_metadata import (
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
)
from headrace_broker.protocol.messages.records.share_group_metadata import (
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
)
from headrace_broker.protocol.messages.records.share_group_state_partition_metadata import (
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    TopicInfo,
    TopicPartitionsInfo,
)
from headrace_broker.protocol.messages.records.share_group_target_assignment_member import (
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    TopicPartition,
)
from headrace_broker.protocol.messages.records.share_group_target_assignment_metadata import (
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)

NamedPartitions = Mapping[UUID, tuple[str, frozenset[int]]]
"""By topic id: its name, and partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareMemberRecord:
    """A member of a share group and what it subscribes to."""

    key: ShareGroupMemberMetadataKey
    value: ShareGroupMemberMetadataValue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareEpochRecord:
    """The epoch of a share group; its tombstone ends the group."""

    key: ShareGroupMetadataKey
    value: ShareGroupMetadataValue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareTargetEpochRecord:
    """The group's epoch that the targets were computed for."""

    key: ShareGroupTargetAssignmentMetadataKey
    value: ShareGroupTargetAssignmentMetadataValue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareTargetRecord:
    """What a member shall have."""

    key: ShareGroupTargetAssignmentMemberKey
    value: ShareGroupTargetAssignmentMemberValue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareAssignmentRecord:
    """What a member has, and in which epoch."""

    key: ShareGroupCurrentMemberAssignmentKey
    value: ShareGroupCurrentMemberAssignmentValue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareStateRecord:
    """Which partitions have state at the share coordinator."""

    key: ShareGroupStatePartitionMetadataKey
    value: ShareGroupStatePartitionMetadataValue | None


ShareGroupRecord = (
    ShareMemberRecord
    | ShareEpochRecord
    | ShareTargetEpochRecord
    | ShareTargetRecord
    | ShareAssignmentRecord
    | ShareStateRecord
)


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> ShareEpochRecord:
    """Return record 11."""
    return ShareEpochRecord(
        key=ShareGroupMetadataKey(group_id=group_id),
        value=ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
    )


def target_epoch_record(group_id: str, epoch: int) -> ShareTargetEpochRecord:
    """Return record 12."""
    return ShareTargetEpochRecord(
        key=ShareGroupTargetAssignmentMetadataKey(group_id=group_id),
        value=ShareGroupTargetAssignmentMetadataValue(assignment_epoch=epoch),
    )


def target_record(group_id: str, member_id: str, target: Partitions) -> ShareTargetRecord:
    """Return record 13."""
    return ShareTargetRecord(
        key=ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
        value=ShareGroupTargetAssignmentMemberValue(
            topic_partitions=to_structs(TopicPartition, target)
        ),
    )


def state_record(
    group_id: str,
    initializing: NamedPartitions,
    initialized: NamedPartitions,
    deleting: Mapping[UUID, str],
) -> ShareStateRecord:
    """Return record 15."""
    return ShareStateRecord(
        key=ShareGroupStatePartitionMetadataKey(group_id=group_id),
        value=ShareGroupStatePartitionMetadataValue(
            initializing_topics=_infos(initializing),
            initialized_topics=_infos(initialized),
            deleting_topics=[
                TopicInfo(topic_id=topic_id, topic_name=name)
                for topic_id, name in sorted(deleting.items())
            ],
        ),
    )


def _infos(partitions: NamedPartitions) -> list[TopicPartitionsInfo]:
    return [
        TopicPartitionsInfo(topic_id=topic_id, topic_name=name, partitions=sorted(items))
        for topic_id, (name, items) in sorted(partitions.items())
        if items
    ]


def from_infos(infos: Iterable[TopicPartitionsInfo]) -> dict[UUID, tuple[str, frozenset[int]]]:
    """Return the partitions in a list of record 15."""
    return {item.topic_id: (item.topic_name, frozenset(item.partitions)) for item in infos}


def member_tombstones(group_id: str, member_id: str) -> list[ShareGroupRecord]:
    """Return the tombstones of a member: its partitions, its target, itself."""
    return [
        ShareAssignmentRecord(
            key=ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id),
            value=None,
        ),
        ShareTargetRecord(
            key=ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id),
            value=None,
        ),
        ShareMemberRecord(
            key=ShareGroupMemberMetadataKey(group_id=group_id, member_id=member_id), value=None
        ),
    ]


def group_tombstones(group_id: str, member_ids: Iterable[str]) -> Iterator[ShareGroupRecord]:
    """Yield the tombstones of a group: the group itself last."""
    for member_id in member_ids:
        yield from member_tombstones(group_id, member_id)
    yield ShareTargetEpochRecord(
        key=ShareGroupTargetAssignmentMetadataKey(group_id=group_id), value=None
    )
    yield ShareStateRecord(key=ShareGroupStatePartitionMetadataKey(group_id=group_id), value=None)
    yield ShareEpochRecord(key=ShareGroupMetadataKey(group_id=group_id), value=None)
