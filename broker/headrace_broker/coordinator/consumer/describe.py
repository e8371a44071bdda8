"""ConsumerGroupDescribe: a consumer group as an administrator sees it."""

from headrace_broker.coordinator.config import ConsumerGroupConfig
from headrace_broker.coordinator.consumer.group import ConsumerGroup
from headrace_broker.coordinator.consumer.member import ConsumerMember
from headrace_broker.coordinator.consumer.target import preferred_assignor
from headrace_broker.coordinator.modern.assignment import Partitions, to_named_structs
from headrace_broker.coordinator.modern.topics import TopicsView
from headrace_broker.coordinator.shard import GroupShard
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.consumer_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    TopicPartitions,
)

_CLASSIC, _CONSUMER = 0, 1  # Member.member_type (KIP-1099)


def describe_consumer_group(
    shard: GroupShard, group_id: str, config: ConsumerGroupConfig, topics: TopicsView
) -> DescribedGroup:
    """Describe one group; answer with an error if it is missing or of another kind."""
    group = shard.consumer_groups.get(group_id)
    if group is None:
        known = shard.has_other_kind(group_id, shard.consumer_groups)
        return DescribedGroup(
            group_id=group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} is not a consumer group."
            if known
            else f"Group {group_id} not found.",
        )
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=preferred_assignor(group, config),
        members=[_member(group, member, topics) for member in group.members.values()],
    )


def _member(group: ConsumerGroup, member: ConsumerMember, topics: TopicsView) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topic_names),
        subscribed_topic_regex=member.topic_regex or None,
        assignment=_assignment(member.assigned, topics),
        target_assignment=_assignment(group.target_of(member.member_id), topics),
        member_type=_CONSUMER if member.classic is None else _CLASSIC,
    )


def _assignment(partitions: Partitions, topics: TopicsView) -> Assignment:
    return Assignment(topic_partitions=to_named_structs(TopicPartitions, partitions, topics))
