"""What administrators read and change in share groups: descriptions, deletion, partitions."""

from collections.abc import Collection, Iterator, Mapping
from uuid import UUID

from headrace_broker.coordinator.decision import GroupDecision, SetTimer
from headrace_broker.coordinator.modern.assignment import Partitions, to_named_structs
from headrace_broker.coordinator.modern.topics import TopicsView
from headrace_broker.coordinator.records import CoordinatorRecord
from headrace_broker.coordinator.shard import GroupShard, session_key
from headrace_broker.coordinator.share.group import ShareGroup
from headrace_broker.coordinator.share.member import ShareMember
from headrace_broker.coordinator.share.records import (
    epoch_record,
    group_tombstones,
    state_record,
)
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.share_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    TopicPartitions,
)

ASSIGNOR = "simple"


def describe_share_group(shard: GroupShard, group_id: str, topics: TopicsView) -> DescribedGroup:
    """Describe one group; answer with an error if it is missing or of another kind."""
    group = shard.share_groups.get(group_id)
    if group is None:
        known = shard.has_other_kind(group_id, shard.share_groups)
        return DescribedGroup(
            group_id=group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} is not a share group."
            if known
            else f"Group {group_id} not found.",
        )
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=ASSIGNOR,
        members=[_member(member, topics) for member in group.members.values()],
    )


def _member(member: ShareMember, topics: TopicsView) -> Member:
    return Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topic_names),
        assignment=_assignment(member.assigned, topics),
    )


def _assignment(partitions: Partitions, topics: TopicsView) -> Assignment:
    return Assignment(topic_partitions=to_named_structs(TopicPartitions, partitions, topics))


def find_share_group(shard: GroupShard, group_id: str) -> ShareGroup:
    """Return the group; raise GROUP_ID_NOT_FOUND."""
    group = shard.share_groups.get(group_id)
    if group is None:
        raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a share group.")
    return group


def find_or_create_share_group(shard: GroupShard, group_id: str, *, has_room: bool) -> ShareGroup:
    """Return the group, or a new one that its first record will create.

    Raises INVALID_GROUP_ID, GROUP_ID_NOT_FOUND for another kind, POLICY_VIOLATION without room.
    """
    if not group_id:
        raise ApiError(ErrorCode.INVALID_GROUP_ID, "GroupId can't be empty.")
    if group_id in shard.share_groups or shard.has_other_kind(group_id, shard.share_groups):
        return find_share_group(shard, group_id)
    if not has_room:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "headrace.max.groups is reached")
    return ShareGroup(group_id=group_id)


def check_empty(group: ShareGroup) -> None:
    """Raise NON_EMPTY_GROUP while it has members."""
    if group.members:
        raise ApiError(ErrorCode.NON_EMPTY_GROUP, f"The group {group.group_id} is not empty.")


def group_end(group: ShareGroup) -> Iterator[CoordinatorRecord]:
    """Yield a group's tombstones; its state at the share coordinator must be deleted already."""
    return group_tombstones(group.group_id, group.members)


def decide_partitions(
    group: ShareGroup, names: Mapping[UUID, str], made: Partitions, gone: Collection[UUID] = ()
) -> GroupDecision:
    """Record partitions whose state was reset, or topics whose state was deleted."""
    initialized = {key: item for key, item in group.initialized.items() if key not in gone}
    initializing = {key: item for key, item in group.initializing.items() if key not in gone}
    for topic_id, items in made.items():
        _, had = initialized.get(topic_id, ("", frozenset[int]()))
        initialized[topic_id] = (names[topic_id], had | items)
    deleting = {key: name for key, name in group.deleting.items() if key not in gone}
    return GroupDecision(
        records=[
            epoch_record(group.group_id, group.epoch + 1, group.metadata_hash),
            state_record(group.group_id, initializing, initialized, deleting),
        ]
    )


def decide_share_topics_deleted(
    shard: GroupShard, topic_ids: Collection[UUID]
) -> Iterator[CoordinatorRecord]:
    """Remove the partitions of deleted topics; the share coordinator deletes their state."""
    for group in shard.share_groups.values():
        if any(key in group.initialized or key in group.initializing for key in topic_ids):
            yield state_record(
                group.group_id,
                {key: item for key, item in group.initializing.items() if key not in topic_ids},
                {key: item for key, item in group.initialized.items() if key not in topic_ids},
                {key: name for key, name in group.deleting.items() if key not in topic_ids},
            )


def sessions_of(group: ShareGroup, timeout_ms: int) -> Iterator[SetTimer]:
    """Yield a new session for every member, for a new coordinator."""
    for member_id in group.members:
        yield SetTimer(key=session_key(group.group_id, member_id), delay_ms=timeout_ms)
